"""Deaths by a signal, where no rank left an exception."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence

from engine.schema.job import Loss
from engine.schema.trial import Attribution, EvidenceLine, FailureKind
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.deaths import Death
from engine.trial.attribution.logs import LogLine, search_lines
from engine.trial.attribution.scheduler_words import loss_of, scheduler_line

_KILLED_FOR_MEMORY = re.compile(
    r"oom[-_ ]kill|Out of memory: Killed process|Memory cgroup out of memory|OOMKilled|: Out Of Memory\b"
    r"|TERM_MEMLIMIT"
)


def _said_of_memory(lines: Sequence[LogLine], context: AttributionContext) -> EvidenceLine | None:
    """The system's own word that it killed for memory: in the log, else by the scheduler."""
    line = search_lines(lines, _KILLED_FOR_MEMORY)
    if line is not None:
        return line.quote()
    if context.scheduler is not None and loss_of(context.scheduler) is Loss.HOST_OOM:
        return scheduler_line(context.scheduler)
    return None


def attribute_death(death: Death, lines: Sequence[LogLine], context: AttributionContext) -> Attribution:
    """What a signal says: SIGKILL that nobody of us sent is the host's memory, SIGBUS is shared memory.

    A bare signal is weak evidence, so the blame stays open unless the system says itself why it killed.
    """
    who = "a process of the run" if death.rank is None else f"rank {death.rank}"
    if death.signal == signal.SIGKILL:
        said = _said_of_memory(lines, context)
        cause = f"{who} was killed (SIGKILL), most likely because the host ran out of memory"
        if said is not None:
            cause = f"{who} was killed because the host ran out of memory: {said.text}"
        return Attribution(
            kind=FailureKind.OOM_HOST,
            blame_candidate=True if said is not None else None,
            cause=cause,
            rank=death.rank,
            evidence=(said, death.evidence) if said is not None else (death.evidence,),
        )
    if death.signal == signal.SIGBUS:
        return Attribution(
            kind=FailureKind.OOM_SHM,
            blame_candidate=None,
            cause=f"{who} died of SIGBUS, most likely because shared memory ran out",
            rank=death.rank,
            evidence=(death.evidence,),
        )
    kind = FailureKind.UNKNOWN
    if context.had_patch or context.changes:
        only_patch = context.had_patch and not context.changes
        kind = FailureKind.PATCH_ERROR if only_patch else FailureKind.CONFIG_CONFLICT
    return Attribution(
        kind=kind,
        blame_candidate=None,
        cause=f"{who} crashed with {death.name} and left no exception",
        rank=death.rank,
        evidence=(death.evidence,),
        implicated=context.implicated if kind is FailureKind.CONFIG_CONFLICT else (),
        signature=death.name,
    )
