"""What the mechanism table makes us expect of one change of one task.

The table's priors are relative to the table's default; a task's baseline may be any value, so an expectation
is the difference of two priors. It is bounded by Amdahl's law (1967): a mechanism that only eases one visible
phase cannot gain more than that phase takes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from engine.mechanisms.record import Mechanism
from engine.schema.base import Scalar
from engine.schema.diagnosis import Diagnosis

UNKNOWN_SPEED_SD = 0.12
UNKNOWN_MEMORY_SD = 0.20
_SMALLEST_SD = 0.01
_SMALLEST_BOUNDED_SD = 0.02
_LARGEST_SHARE = 0.95
# The table speaks of GPUs: on a CPU half of an effect is believed, and the other half is doubt.
_CPU_TRUST = 0.5
_CPU_SMALLEST_SD = 0.05


@dataclass(frozen=True, slots=True)
class Belief:
    """Expected natural logs of speed-up and memory ratio over the baseline, each with a standard deviation.

    Attributes:
        source: table where both values have a prior, else guess.
    """

    speed: float
    speed_sd: float
    memory: float
    memory_sd: float
    source: Literal["table", "guess"]


def believe(
    mechanism: Mechanism | None, baseline: Scalar, value: Scalar, diagnosis: Diagnosis, device: str
) -> Belief:
    """What to expect when one mechanism goes from its baseline value to another.

    Args:
        mechanism: Its row of the table, None for a free name.
        baseline: Value of the unchanged job.
        value: Value of the idea.
        diagnosis: Its phases bound the gain.
        device: cuda or cpu.
    """
    if mechanism is None:
        return Belief(0.0, UNKNOWN_SPEED_SD, 0.0, UNKNOWN_MEMORY_SD, "guess")
    speed = _difference(mechanism.log_speedup(baseline), mechanism.log_speedup(value))
    memory = _difference(_log_ratio(mechanism, baseline), _log_ratio(mechanism, value))
    if speed is None or memory is None:
        return Belief(0.0, UNKNOWN_SPEED_SD, 0.0, UNKNOWN_MEMORY_SD, "guess")
    mean, sd = speed
    if device == "cpu":
        mean *= _CPU_TRUST
        sd = max(math.hypot(sd, mean), _CPU_SMALLEST_SD)
    mean, sd = _bounded(mean, sd, phase_share(mechanism, diagnosis))
    return Belief(mean, sd, *memory, "table")


def phase_share(mechanism: Mechanism, diagnosis: Diagnosis) -> float | None:
    """Share of an update in the one phase that the mechanism eases; None where none is visible."""
    phases = diagnosis.phases
    if mechanism.id == "optimizer_impl":
        seconds = phases.optimizer
    elif mechanism.relieves == ("communication",):
        seconds = phases.communication
    elif mechanism.relieves == ("io",):
        seconds = phases.data
    else:
        return None
    return None if seconds is None else min(seconds / diagnosis.step_time_s, _LARGEST_SHARE)


def _bounded(mean: float, sd: float, share: float | None) -> tuple[float, float]:
    if share is None or mean < 0:
        return mean, sd
    bound = -math.log1p(-share)
    return min(mean, bound), min(sd, max(bound, _SMALLEST_BOUNDED_SD))


def _difference(
    before: tuple[float, float] | None, after: tuple[float, float] | None
) -> tuple[float, float] | None:
    if before is None or after is None:
        return None
    return after[0] - before[0], max(math.hypot(before[1], after[1]), _SMALLEST_SD)


def _log_ratio(mechanism: Mechanism, value: Scalar) -> tuple[float, float] | None:
    """(mean, sd) of the log of the memory ratio, to first order."""
    ratio = mechanism.memory_ratio(value)
    return None if ratio is None else (math.log(ratio[0]), ratio[1] / ratio[0])
