"""Why a job that left no result is lost, from the scheduler's facts alone."""

from __future__ import annotations

from engine.schema.job import Loss, SchedulerFacts
from slurm.scheduler.states import parse_state

_OOM_EXIT = 125
_OOM_WORDS = ("outofmemory", "out_of_memory", "oom")


def loss_of(facts: SchedulerFacts | None) -> Loss:
    """The cause that fits the facts; the job's own files may know a better one.

    Exit code 137 (SIGKILL) is no proof of memory: srun kills the other ranks so when one fails.
    """
    if facts is None:
        return Loss.VANISHED
    state = parse_state(facts.state)
    if state.loss is Loss.HOST_OOM or _reads_oom(facts):
        return Loss.HOST_OOM
    if facts.restarts > 0:
        return Loss.RESTARTED
    if state.loss is not None:
        return state.loss
    if not state.is_final:
        return Loss.VANISHED
    return Loss.NEVER_STARTED if facts.started_at is None else Loss.AGENT_DIED


def _reads_oom(facts: SchedulerFacts) -> bool:
    reason = (facts.reason or "").lower()
    return any(word in reason for word in _OOM_WORDS) or (
        facts.signal == _OOM_EXIT and parse_state(facts.state).word in ("FAILED", "OUT_OF_MEMORY")
    )
