"""What an allocation has cost."""

from __future__ import annotations

import time

from engine.schema.job import AllocationUse, SchedulerFacts
from slurm.held.allocations import Allocations
from slurm.held.holding import Holding
from slurm.scheduler.states import parse_state

_SETTLE_S = 120.0
"""So long after a holder left Slurm's own times are waited for."""


def use_of(allocations: Allocations, holding: Holding) -> AllocationUse | None:
    """What an allocation has cost so far; None while it is not queued. Written down once it is final."""
    if holding.record.use is not None:
        return holding.record.use
    job_id = holding.job_id
    if job_id is None:
        return None
    reading = None if allocations.is_beating(holding) else allocations.reading(holding)
    facts = reading.facts if reading is not None else None
    use = _use(allocations, holding, job_id, facts)
    leaving = holding.progress.leaving
    is_final = facts is not None and _is_final(facts) and facts.ended_at is not None
    is_forgotten = reading is not None and allocations.ending(holding) is not None and not is_final
    if is_final or is_forgotten or (leaving is not None and time.time() - leaving.at > _SETTLE_S):
        holding.update(use=use)
        allocations.forget(holding)
    return use


def _use(
    allocations: Allocations, holding: Holding, job_id: str, facts: SchedulerFacts | None
) -> AllocationUse:
    allocated, leaving = holding.progress.allocated, holding.progress.leaving
    told = facts if facts is not None and facts.started_at is not None else None
    ended_at = facts.ended_at if facts is not None and _is_final(facts) else None
    if ended_at is None and leaving is not None:
        ended_at = leaving.at
    elif ended_at is None and allocations.ending(holding) is not None:
        ended_at = allocations.pulse(holding).at()
    started_at = told.started_at if told else allocated.at if allocated else None
    return AllocationUse(
        job_id=job_id,
        gpus=holding.record.gpus,
        nodes=allocated.nodes if allocated else told.nodes if told else (),
        submitted_at=holding.record.submitted_at,
        started_at=started_at,
        ended_at=ended_at if started_at is not None else None,
        source=told.source if told else "own clock",
    )


def _is_final(facts: SchedulerFacts) -> bool:
    return parse_state(facts.state).is_final
