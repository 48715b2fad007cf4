"""Comparing hyper-parameters up to float32 rounding."""

from __future__ import annotations

import math

from engine.schema.evidence import HyperValue

Hyper = tuple[tuple[str, HyperValue], ...]
"""Name and value pairs of one parameter group."""

HYPER_TOLERANCE = 1e-6
"""Relative; a learning rate kept in a float32 tensor is rounded by 6e-8."""


def rounded(value: HyperValue) -> HyperValue:
    """The value without rounding noise; numbers equal within float32 precision become one."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return tuple(float(f"{number:.6g}") for number in value)
    return float(f"{value:.6g}")


def same_value(old: HyperValue, new: HyperValue) -> bool:
    """Equality of hyper-parameters up to float32 rounding; True and 1 are different things."""
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) == len(new) and all(same_value(a, b) for a, b in zip(old, new, strict=True))
    if _is_number(old) and _is_number(new):
        return math.isclose(float(old), float(new), rel_tol=HYPER_TOLERANCE, abs_tol=0.0)  # type: ignore[arg-type]
    return type(old) is type(new) and old == new


def _is_number(value: HyperValue) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def show(value: HyperValue) -> str:
    """A hyper-parameter as text."""
    if isinstance(value, tuple):
        return "(" + ", ".join(f"{number:.6g}" for number in value) + ")"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
