"""Jobs that are gone without a result: mostly infrastructure, seldom the candidate."""

from __future__ import annotations

import math

from engine.schema.job import Loss, SchedulerFacts
from engine.schema.trial import Attribution, EvidenceLine, FailureKind
from engine.trial.attribution.scheduler_words import scheduler_line

_WHAT: dict[Loss, str] = {
    Loss.NODE_FAILED: "a node failed",
    Loss.PREEMPTED: "the job was preempted",
    Loss.HOST_OOM: "the job was killed because the host ran out of memory",
    Loss.TIME_LIMIT: "the allocation reached its time limit",
    Loss.CANCELLED_OUTSIDE: "the job was ended from outside",
    Loss.RESTARTED: "the scheduler started the job again: not one clean measurement",
    Loss.NEVER_STARTED: "the job never started",
    Loss.AGENT_DIED: "the node agent is gone",
    Loss.VANISHED: "neither the scheduler nor the files know the job any more",
}


def attribute_loss(
    loss: Loss | None,
    reason: str | None,
    facts: SchedulerFacts | None,
    *,
    ran_s: float | None = None,
    own_limit_s: float = math.inf,
) -> Attribution:
    """Why a job left no result that counts.

    Only two of the reasons can be the candidate's. Host memory is: it never is a point of the memory model,
    since nobody knows at how many bytes the limit was reached. A time limit is open where the trial had all
    the time it asked for, and nobody's where the end of the allocation cut it short.

    Args:
        loss: The executor's reading, None where it has none.
        reason: The executor's words.
        facts: The scheduler's words.
        ran_s: Seconds for which the trial ran, None where that is not known.
        own_limit_s: Seconds after which the trial's own agent would have ended it.
    """
    what = _WHAT[loss] if loss is not None else ""
    cause = ": ".join(part for part in (what, reason or "") if part) or "the job is gone without a result"
    kind, blame = FailureKind.INFRA, False
    if loss is Loss.PREEMPTED:
        kind = FailureKind.PREEMPTED
    elif loss is Loss.HOST_OOM:
        return Attribution(
            kind=FailureKind.OOM_HOST, blame_candidate=True, cause=cause, evidence=_evidence(facts, reason)
        )
    elif loss is Loss.TIME_LIMIT:
        if ran_s is not None and ran_s >= own_limit_s:
            return Attribution(
                kind=FailureKind.TIMEOUT,
                blame_candidate=None,
                cause=f"{cause}; the trial had run for {ran_s:.0f} s",
                evidence=_evidence(facts, reason),
            )
        ran = "" if ran_s is None else f" after {ran_s:.0f} s"
        cause += f"; it cut the trial short{ran}: ask for more by slurm.time_limit_min"
    return Attribution(kind=kind, blame_candidate=blame, cause=cause, evidence=_evidence(facts, reason))


def _evidence(facts: SchedulerFacts | None, reason: str | None) -> tuple[EvidenceLine, ...]:
    if facts is not None:
        return (scheduler_line(facts),)
    return (EvidenceLine(line=None, text=reason[:400]),) if reason else ()
