"""The factor that is kept up to date equals the factor computed from scratch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.models import cholesky
from engine.models.arrays import FloatArray

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 12)


def positive_definite(rng: np.random.Generator, size: int) -> FloatArray:
    """A random precision matrix like the ones of a study: small prior precision plus a few rows."""
    rows = rng.normal(size=(size + 2, size))
    return rows.T @ rows + 0.1 * np.eye(size)


@settings(max_examples=50, deadline=None)
@given(seed=seeds, size=sizes)
def test_update_equals_refactorising(seed: int, size: int) -> None:
    """Updating L by x gives the factor of A + x x^T that LAPACK computes."""
    rng = np.random.default_rng(seed)
    matrix, x = positive_definite(rng, size), rng.normal(size=size)
    updated = cholesky.update(cholesky.factorise(matrix), x)
    np.testing.assert_allclose(updated, np.linalg.cholesky(matrix + np.outer(x, x)), rtol=1e-9, atol=1e-10)


@settings(max_examples=50, deadline=None)
@given(seed=seeds, size=sizes, count=st.integers(1, 15))
def test_downdates_undo_updates_in_any_order(seed: int, size: int, count: int) -> None:
    """Adding rows and removing them in another order gives back the factor, and the inputs are untouched."""
    rng = np.random.default_rng(seed)
    original = cholesky.factorise(positive_definite(rng, size))
    kept, rows = original.copy(), rng.normal(size=(count, size))
    factor = original
    for row in rows:
        factor = cholesky.update(factor, row)
    for row in rng.permutation(rows):
        factor = cholesky.downdate(factor, row)
    np.testing.assert_allclose(factor, kept, rtol=1e-7, atol=1e-8)
    np.testing.assert_array_equal(original, kept)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=sizes, excess=st.floats(1.0, 10.0))
def test_a_downdate_that_loses_definiteness_is_refused(seed: int, size: int, excess: float) -> None:
    """Removing more than is there raises instead of giving a clamped factor."""
    rng = np.random.default_rng(seed)
    factor = cholesky.factorise(positive_definite(rng, size))
    direction = rng.normal(size=size)
    x = factor @ (direction / float(np.linalg.norm(direction))) * excess
    with pytest.raises(cholesky.LostDefiniteness):
        cholesky.downdate(factor, x)


@settings(max_examples=50, deadline=None)
@given(seed=seeds, size=sizes)
def test_bordering_equals_refactorising(seed: int, size: int) -> None:
    """Adding a column to the factor gives the factor of the larger matrix."""
    larger = positive_definite(np.random.default_rng(seed), size + 1)
    bordered = cholesky.border(cholesky.factorise(larger[:-1, :-1]), larger[-1, :-1], larger[-1, -1])
    np.testing.assert_allclose(bordered, np.linalg.cholesky(larger), rtol=1e-9, atol=1e-10)


def test_bordering_with_a_dependent_column_is_refused() -> None:
    """A new column that repeats an old one without prior precision has no factor."""
    with pytest.raises(cholesky.LostDefiniteness):
        cholesky.border(np.eye(2), np.array([1.0, 0.0]), 1.0)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=sizes)
def test_solves_and_determinant_agree_with_lapack(seed: int, size: int) -> None:
    """Solutions, quadratic forms and log-determinant from the factor equal those from the matrix."""
    rng = np.random.default_rng(seed)
    matrix, right = positive_definite(rng, size), rng.normal(size=(size, 3))
    factor = cholesky.factorise(matrix)
    np.testing.assert_allclose(
        cholesky.solve(factor, right), np.linalg.solve(matrix, right), rtol=1e-6, atol=1e-8
    )
    form = (cholesky.half_solve(factor, right) ** 2).sum(axis=0)
    np.testing.assert_allclose(form, np.diag(right.T @ np.linalg.inv(matrix) @ right), rtol=1e-6)
    assert cholesky.log_determinant(factor) == pytest.approx(np.linalg.slogdet(matrix)[1], abs=1e-9)


def test_two_hundred_updates_do_not_drift() -> None:
    """After as many updates as a long study makes, the factor still reproduces the matrix to rounding."""
    rng = np.random.default_rng(1)
    matrix = 0.06 * np.eye(24)
    factor = cholesky.factorise(matrix)
    for row in rng.integers(0, 2, size=(200, 24)).astype(np.float64):
        matrix = matrix + np.outer(row, row)
        factor = cholesky.update(factor, row)
    np.testing.assert_allclose(factor @ factor.T, matrix, atol=1e-10)
