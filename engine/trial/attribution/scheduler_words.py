"""What the scheduler said of a job, as evidence."""

from __future__ import annotations

from engine.schema.job import Loss, SchedulerFacts
from engine.schema.trial import EvidenceLine

_UNREMARKABLE = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "COMPLETED"})
_LOSSES = {
    "NODE_FAIL": Loss.NODE_FAILED,
    "BOOT_FAIL": Loss.NODE_FAILED,
    "PREEMPTED": Loss.PREEMPTED,
    "OUT_OF_MEMORY": Loss.HOST_OOM,
    "TIMEOUT": Loss.TIME_LIMIT,
    "DEADLINE": Loss.TIME_LIMIT,
}
_LONGEST = 400


def loss_of(facts: SchedulerFacts | None) -> Loss | None:
    """Why the scheduler ended a job; None where its word gives no reason of its own."""
    return None if facts is None else _LOSSES.get(_state(facts))


def scheduler_line(facts: SchedulerFacts) -> EvidenceLine:
    """The scheduler's words on one line."""
    parts = [facts.state]
    if facts.reason and facts.reason != "None":
        parts.append(f"reason {facts.reason}")
    if facts.signal:
        parts.append(f"signal {facts.signal}")
    if facts.exit_code:
        parts.append(f"exit code {facts.exit_code}")
    if facts.restarts:
        parts.append(f"restarts {facts.restarts}")
    if facts.nodes:
        parts.append(f"nodes {','.join(facts.nodes)}")
    return EvidenceLine(line=None, text=f"{facts.source}: job {facts.job_id}: {', '.join(parts)}"[:_LONGEST])


def remarkable_line(facts: SchedulerFacts | None) -> tuple[EvidenceLine, ...]:
    """The scheduler's words where they say more than that the job ran."""
    if facts is None or (_state(facts) in _UNREMARKABLE and not facts.restarts):
        return ()
    return (scheduler_line(facts),)


def _state(facts: SchedulerFacts) -> str:
    """The state without its tail, such as the user in "CANCELLED by 1000"."""
    return facts.state.split(maxsplit=1)[0].upper() if facts.state.strip() else ""
