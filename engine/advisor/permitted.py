"""What the task's constraints let an advisor propose at all."""

from __future__ import annotations

from engine.mechanisms.record import Mechanism
from engine.schema.base import Scalar
from engine.schema.task import ConstraintsSection

_PRECISIONS = ("fp32", "bf16", "fp16", "fp8")


def is_permitted(mechanism: Mechanism | None, value: Scalar, constraints: ConstraintsSection) -> bool:
    """Whether a value may be proposed: not locked (or allowed), and not below the precision floor."""
    if mechanism is None:
        return True
    if mechanism.risk(value) == "locked" and mechanism.id not in constraints.allow:
        return False
    floor = _PRECISIONS.index(constraints.precision_floor)
    if mechanism.id == "compute_dtype" and value in _PRECISIONS:
        return _PRECISIONS.index(str(value)) <= floor
    if mechanism.id == "low_precision_recipe" and value != "none":
        return constraints.precision_floor == "fp8"
    return True
