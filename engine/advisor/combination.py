"""The high-yield start: everything at once that the table expects to help and that together seems to fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine.advisor.advised_space import AdvisedSpace
from engine.advisor.belief import Belief
from engine.advisor.compatibility import clashes, unmet_requirements
from engine.advisor.reasons import percent
from engine.mechanisms.record import Mechanism
from engine.schema.advice import Idea
from engine.schema.base import Scalar
from engine.schema.diagnosis import Diagnosis

# How much a peak may grow where nobody knows the limit.
_BLIND_GROWTH = 1.25
# Gains below this are not worth a change that must be carried through a whole study.
_SMALLEST_GAIN = 0.01
# Log speed-up that a doubling of the peak must at least bring to be preferred over a leaner value.
_PRICE_OF_MEMORY = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """One mechanism at another value, and what is expected of it."""

    mechanism: str
    value: Scalar
    belief: Belief
    relieves: tuple[str, ...]


def combine(
    changes: Sequence[Change],
    space: AdvisedSpace,
    mechanisms: Mapping[str, Mechanism],
    diagnosis: Diagnosis,
    headroom: float,
) -> Idea | None:
    """Collect changes greedily: those that save memory first, then those that spend what is left, best first.

    Args:
        changes: Single changes; only those with a positive expectation from the table are used.
        space: Its requirements must hold for the whole.
        mechanisms: Its conflicts and requirements are respected.
        diagnosis: Peak and limit of the memory.
        headroom: Share of the limit that stays free.

    Returns:
        An idea of two changes or more, else None.
    """
    room = _room(diagnosis, headroom)
    chosen: dict[str, Change] = {}
    hopeful = [
        change
        for change in changes
        if change.belief.speed >= _SMALLEST_GAIN and change.belief.source == "table"
    ]
    order = sorted(hopeful, key=_priority)
    # Twice: a change may need another one that comes later in the order.
    for change in (*order, *order):
        if change.mechanism in chosen:
            continue
        trial = {**chosen, change.mechanism: change}
        if _memory(trial) <= max(room, _memory(chosen)) and _is_sound(trial, space, mechanisms):
            chosen = trial
    return _idea(chosen, diagnosis) if len(chosen) > 1 else None


def _priority(change: Change) -> tuple[bool, float, str, str]:
    belief = change.belief
    worth = belief.speed - _PRICE_OF_MEMORY * max(0.0, belief.memory) / math.log(2.0)
    return belief.memory > 0, -worth, change.mechanism, str(change.value)


def _room(diagnosis: Diagnosis, headroom: float) -> float:
    """Log of the factor by which the peak may grow."""
    peak, limit = diagnosis.peak_memory_gib, diagnosis.memory_limit_gib
    if not peak or not limit:
        return math.log(_BLIND_GROWTH)
    return math.log(limit * (1.0 - headroom) / peak)


def _memory(chosen: Mapping[str, Change]) -> float:
    return sum(change.belief.memory for change in chosen.values())


def _is_sound(chosen: Mapping[str, Change], space: AdvisedSpace, mechanisms: Mapping[str, Mechanism]) -> bool:
    baseline = space.baseline()
    configuration = {**baseline, **{name: change.value for name, change in chosen.items()}}
    known = [mechanisms[name] for name in chosen if name in mechanisms]
    if any(unmet_requirements(mechanism, configuration) for mechanism in known):
        return False
    tolerated = set(clashes(mechanisms, baseline))
    if set(clashes(mechanisms, configuration)) - tolerated:
        return False
    if space.violations(configuration):
        return False
    effective = space.normalise(configuration)
    return all(effective[name] == change.value for name, change in chosen.items())


def _idea(chosen: Mapping[str, Change], diagnosis: Diagnosis) -> Idea:
    beliefs = [change.belief for change in chosen.values()]
    mean = sum(belief.speed for belief in beliefs)
    memory = _memory(chosen)
    eased = [name for change in chosen.values() for name in change.relieves]
    relieves = sorted(dict.fromkeys(eased), key=lambda name: name != diagnosis.bottleneck)
    return Idea(
        changes={name: chosen[name].value for name in sorted(chosen)},
        log_speedup_mean=mean,
        log_speedup_sd=math.hypot(*(belief.speed_sd for belief in beliefs)),
        log_memory_mean=memory,
        log_memory_sd=math.hypot(*(belief.memory_sd for belief in beliefs)),
        reason=f"all {len(chosen)} changes that the table expects to help and that together seem to fit: "
        f"{percent(mean)} speed if their effects add up, memory × {math.exp(memory):.2f}",
        relieves=tuple(relieves),
    )
