"""Cholesky factor of a precision matrix kept up to date in O(d^2) per observation.

Conventions: A = L L^T with L lower triangular, shape (d, d). No function changes its arguments.

Source: Gill, Golub, Murray, Saunders (1974), "Methods for modifying matrix factorizations", Math. Comp. 28;
Seeger (2004), "Low rank updates for the Cholesky decomposition".
"""

from __future__ import annotations

import math

import numpy as np
from scipy.linalg import solve_triangular

from engine.models.arrays import FloatArray

# Below this share of the old pivot a down-dated pivot holds rounding error and nothing else.
_SMALLEST_PIVOT_SHARE = 1e-10


class LostDefiniteness(ArithmeticError):
    """The modified matrix is not safely positive definite: rebuild the factor from the observations."""


def factorise(matrix: FloatArray) -> FloatArray:
    """L of a positive definite matrix, both of shape (d, d)."""
    return np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)


def update(factor: FloatArray, x: FloatArray) -> FloatArray:
    """Factor of A + x x^T.

    Args:
        factor: L, shape (d, d).
        x: Shape (d,).

    Returns:
        Lower triangular factor, shape (d, d).
    """
    return _rotate(factor, x, sign=1.0)


def downdate(factor: FloatArray, x: FloatArray) -> FloatArray:
    """Factor of A - x x^T.

    Args:
        factor: L, shape (d, d).
        x: Shape (d,).

    Returns:
        Lower triangular factor, shape (d, d).

    Raises:
        LostDefiniteness: A - x x^T is indefinite, or so near to it that the result would be rounding error.
    """
    return _rotate(factor, x, sign=-1.0)


def border(factor: FloatArray, cross: FloatArray, diagonal: float) -> FloatArray:
    """Factor of [[A, c], [c^T, alpha]]: the matrix after one new feature column.

    Args:
        factor: L, shape (d, d).
        cross: c, shape (d,); zero when no past observation used the new feature.
        diagonal: alpha.

    Returns:
        Lower triangular factor, shape (d + 1, d + 1).

    Raises:
        LostDefiniteness: The bordered matrix is not safely positive definite.
    """
    size = factor.shape[0]
    row = half_solve(factor, cross)
    pivot = diagonal - float(row @ row)
    if not pivot > _SMALLEST_PIVOT_SHARE * abs(diagonal):
        raise LostDefiniteness(f"bordering with diagonal {diagonal:g} leaves the pivot {pivot:g}")
    bordered = np.zeros((size + 1, size + 1))
    bordered[:size, :size] = factor
    bordered[size, :size] = row
    bordered[size, size] = math.sqrt(pivot)
    return bordered


def half_solve(factor: FloatArray, right: FloatArray) -> FloatArray:
    """L^-1 right, so that the squared column norms are x^T A^-1 x; right has shape (d,) or (d, m)."""
    if factor.shape[0] == 0 or right.size == 0:
        return np.zeros_like(right)
    solution: FloatArray = solve_triangular(factor, right, lower=True, check_finite=False)
    return solution


def solve(factor: FloatArray, right: FloatArray) -> FloatArray:
    """A^-1 right by two triangular solves; right has shape (d,) or (d, m)."""
    return half_solve_transposed(factor, half_solve(factor, right))


def half_solve_transposed(factor: FloatArray, right: FloatArray) -> FloatArray:
    """L^-T right; applied to standard normal draws it gives draws with covariance A^-1."""
    if factor.shape[0] == 0 or right.size == 0:
        return np.zeros_like(right)
    solution: FloatArray = solve_triangular(factor, right, lower=True, trans="T", check_finite=False)
    return solution


def log_determinant(factor: FloatArray) -> float:
    """Log |A| from its factor."""
    return 2.0 * float(np.log(np.diag(factor)).sum())


def _rotate(factor: FloatArray, x: FloatArray, sign: float) -> FloatArray:
    lower = factor.copy()
    rest = x.copy()
    for k in range(rest.shape[0]):
        old = float(lower[k, k])
        squared = old * old + sign * float(rest[k]) ** 2
        if not squared > _SMALLEST_PIVOT_SHARE * old * old:
            raise LostDefiniteness(f"pivot {k} fell from {old * old:g} to {squared:g}")
        new = math.sqrt(squared)
        cosine, sine = new / old, float(rest[k]) / old
        lower[k, k] = new
        lower[k + 1 :, k] = (lower[k + 1 :, k] + sign * sine * rest[k + 1 :]) / cosine
        rest[k + 1 :] = cosine * rest[k + 1 :] - sine * lower[k + 1 :, k]
    return lower
