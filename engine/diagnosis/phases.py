"""Phases of an update over several runs, and what they leave unexplained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from engine.schema.trial import Measurement, Phases


def typical_phases(measurements: Sequence[Measurement]) -> Phases:
    """Median of each phase over the runs, seconds; None where a run could not see it."""
    return Phases(
        forward=_median(measurements, lambda phases: phases.forward),
        backward=_median(measurements, lambda phases: phases.backward),
        optimizer=_median(measurements, lambda phases: phases.optimizer),
        communication=_median(measurements, lambda phases: phases.communication),
        data=_median(measurements, lambda phases: phases.data),
    )


def unexplained(step_time_s: float, phases: Phases) -> float | None:
    """Seconds of an update in none of the phases: Python, logging, evaluation, waiting.

    Communication is a subset of backward, so it is not subtracted again.

    Returns:
        None where forward or backward are not visible; never negative.
    """
    if phases.forward is None or phases.backward is None:
        return None
    known = phases.forward + phases.backward + (phases.optimizer or 0.0) + (phases.data or 0.0)
    return max(0.0, step_time_s - known)


def _median(measurements: Sequence[Measurement], read: Callable[[Phases], float | None]) -> float | None:
    values = [read(measurement.phases) for measurement in measurements]
    seen = [value for value in values if value is not None]
    return median(seen) if seen and len(seen) == len(values) else None
