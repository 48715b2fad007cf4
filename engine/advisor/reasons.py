"""Sentences of ideas, and the bottlenecks that they ease."""

from __future__ import annotations

import math

from engine.advisor.belief import Belief
from engine.mechanisms.record import Mechanism
from engine.schema.base import Scalar

_TELLING = 0.02


def eased(mechanism: Mechanism | None, belief: Belief, bottleneck: str) -> tuple[str, ...]:
    """Bottlenecks that the change eases, the diagnosed one first.

    The table describes the direction that is faster or leaner; a change against it gives back what the
    mechanism costs.
    """
    if mechanism is None:
        return ()
    found = mechanism.costs if _is_backwards(mechanism, belief) else mechanism.relieves
    return tuple(sorted(found, key=lambda name: (name != bottleneck, found.index(name))))


def single_reason(
    name: str, baseline: Scalar, value: Scalar, belief: Belief, relieves: tuple[str, ...], bottleneck: str
) -> str:
    """Why one change may help."""
    change = f"{name}: {value} instead of {baseline}"
    if belief.source == "guess":
        return f"{change}: nothing is known of it, so it is worth a look"
    aim = ":"
    if relieves:
        diagnosed = ", the diagnosed bottleneck" if relieves[0] == bottleneck else ""
        aim = f" eases {relieves[0]}{diagnosed};"
    return f"{change}{aim} expected {percent(belief.speed)} ± {percent_width(belief.speed_sd)} speed, " + (
        f"memory × {math.exp(belief.memory):.2f}"
    )


def percent(log_speedup: float) -> str:
    """+12 % and the like."""
    return f"{100 * math.expm1(log_speedup):+.0f} %"


def percent_width(sd: float) -> str:
    """Width of a belief, without a sign."""
    return f"{100 * math.expm1(sd):.0f} %"


def _is_backwards(mechanism: Mechanism, belief: Belief) -> bool:
    if "memory" in mechanism.relieves and abs(belief.memory) > _TELLING:
        return belief.memory > 0
    if "memory" in mechanism.costs and abs(belief.memory) > _TELLING:
        return belief.memory < 0
    return belief.speed < -_TELLING
