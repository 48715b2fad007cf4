"""Array types of the numerical modules, and the one gate that keeps NaN and wrong shapes out of a model."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]


def finite_vector(name: str, value: ArrayLike, length: int | None = None) -> FloatArray:
    """Return a read-only float copy of a vector.

    Args:
        name: What the vector is, for the message.
        value: Shape (k,), every element finite.
        length: Required k, or None for any.

    Returns:
        Shape (k,), not writeable.

    Raises:
        ValueError: Wrong shape, or an element that is NaN or infinite.
    """
    array = np.array(value, dtype=np.float64)
    if array.ndim != 1 or (length is not None and array.shape[0] != length):
        wanted = "k" if length is None else str(length)
        raise ValueError(f"{name}: shape {array.shape}, expected ({wanted},)")
    return _sealed(name, array)


def finite_matrix(name: str, value: ArrayLike, columns: int) -> FloatArray:
    """Return a read-only float copy of a matrix with a known number of columns.

    Args:
        name: What the matrix is, for the message.
        value: Shape (k, columns), every element finite; k may be 0.
        columns: Required number of columns.

    Returns:
        Shape (k, columns), not writeable.

    Raises:
        ValueError: Wrong shape, or an element that is NaN or infinite.
    """
    array = np.array(value, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != columns:
        raise ValueError(f"{name}: shape {array.shape}, expected (k, {columns})")
    return _sealed(name, array)


def positive_vector(name: str, value: ArrayLike, length: int | None = None) -> FloatArray:
    """Return a read-only float copy of a vector whose elements are finite and greater than zero.

    Args:
        name: What the vector is, for the message.
        value: Shape (k,).
        length: Required k, or None for any.

    Returns:
        Shape (k,), not writeable.

    Raises:
        ValueError: Wrong shape, or an element that is not a finite positive number.
    """
    array = finite_vector(name, value, length)
    if not np.all(array > 0.0):
        raise ValueError(f"{name}: every element must be greater than 0")
    return array


def _sealed(name: str, array: FloatArray) -> FloatArray:
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name}: every element must be finite")
    array.flags.writeable = False
    return array
