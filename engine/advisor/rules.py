"""The rule-based advisor: deterministic, free, without a network."""

from __future__ import annotations

from collections.abc import Mapping

from engine.advisor.advised_space import AdvisedSpace
from engine.advisor.belief import believe
from engine.advisor.combination import Change, combine
from engine.advisor.permitted import is_permitted
from engine.advisor.reasons import eased, single_reason
from engine.mechanisms.record import Mechanism
from engine.schema.advice import Idea
from engine.schema.diagnosis import Diagnosis
from engine.schema.task import TaskFile


def advise(
    diagnosis: Diagnosis, space: AdvisedSpace, mechanisms: Mapping[str, Mechanism], settings: TaskFile
) -> list[Idea]:
    """Ideas for a task: one combination where there is one, then every single change, the best first.

    Each single idea is a belief about one level of one parameter; the space's requirements are for the search
    to check. Values that the task's constraints forbid are left out.

    Args:
        diagnosis: Of the unchanged job.
        space: What may be changed.
        mechanisms: The table.
        settings: The task file: device, constraints.
    """
    baseline = space.baseline()
    changes, singles = [], []
    for parameter in space.parameters:
        name = parameter.mechanism
        mechanism, before = mechanisms.get(name), baseline[name]
        for value in parameter.values:
            same = value == before and isinstance(value, bool) == isinstance(before, bool)
            if same or not is_permitted(mechanism, value, settings.constraints):
                continue
            belief = believe(mechanism, before, value, diagnosis, settings.allocation.device)
            relieves = eased(mechanism, belief, diagnosis.bottleneck)
            changes.append(Change(name, value, belief, relieves))
            singles.append(
                Idea(
                    changes={name: value},
                    log_speedup_mean=belief.speed,
                    log_speedup_sd=belief.speed_sd,
                    log_memory_mean=belief.memory,
                    log_memory_sd=belief.memory_sd,
                    reason=single_reason(name, before, value, belief, relieves, diagnosis.bottleneck),
                    relieves=relieves,
                    source=belief.source,
                )
            )
    singles.sort(key=lambda idea: (-idea.log_speedup_mean, sorted(map(str, idea.changes.items()))))
    headroom = settings.constraints.memory_headroom
    combined = combine(changes, space, mechanisms, diagnosis, headroom)
    return singles if combined is None else [combined, *singles]
