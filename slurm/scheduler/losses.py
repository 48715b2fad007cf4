"""Why a job that left no result is lost: from the scheduler's facts, and from what it wrote into a log."""

from __future__ import annotations

import re

from engine.schema.job import Loss, SchedulerFacts
from slurm.scheduler.states import parse_state

_OOM_EXIT = 125
_OOM_WORDS = ("outofmemory", "out_of_memory", "oom")
_IN_WORDS = (
    # "CUDA out of memory" is another matter, hence the capitals.
    (re.compile(r"oom[_-]kill event|Out Of Memory|[Ee]xceeded (?:\w+ )?memory limit"), Loss.HOST_OOM),
    (re.compile(r"[Nn]ode failure|NODE FAIL|missing step on node"), Loss.NODE_FAILED),
    (re.compile(r"DUE TO TIME LIMIT"), Loss.TIME_LIMIT),
    (re.compile(r"DUE TO PREEMPTION"), Loss.PREEMPTED),
    (re.compile(r"(?:JOB|STEP) \S+ ON \S+ CANCELLED AT"), Loss.CANCELLED_OUTSIDE),
)


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


def loss_in_words(text: str) -> Loss | None:
    """The cause that slurmstepd or srun named in a log; None where they named none."""
    return next((loss for pattern, loss in _IN_WORDS if pattern.search(text)), None)


def _reads_oom(facts: SchedulerFacts) -> bool:
    reason = (facts.reason or "").lower()
    return any(word in reason for word in _OOM_WORDS) or (
        facts.signal == _OOM_EXIT and parse_state(facts.state).word in ("FAILED", "OUT_OF_MEMORY")
    )
