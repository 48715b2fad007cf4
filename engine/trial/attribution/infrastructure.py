"""Faults of disks, ports, networks, devices and schedulers: no candidate is to blame."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.schema.evidence import RunEvidence
from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.faults import Fault
from engine.trial.attribution.logs import LogLine, search_lines

_FAULTS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]"), "the disk is full"),
    (re.compile(r"Address already in use|EADDRINUSE|\[Errno 98\]"), "a network port was taken"),
    (re.compile(r"Too many open files|\[Errno 24\]"), "the host's limit of open files was reached"),
    (re.compile(r"Stale file handle|Input/output error|\[Errno (?:5|116)\]"), "the file system failed"),
    (
        re.compile(
            r"uncorrectable ECC|NVLink error|\bXid\b|Unable to determine the device handle"
            r"|system not yet initialized"
        ),
        "a GPU failed",
    ),
    (
        re.compile(r"No CUDA GPUs are available|CUDA driver version is insufficient"),
        "the node has no usable GPU",
    ),
    (re.compile(r"ncclSystemError|ncclUnhandledSystemError|NET/IB : Got completion"), "the network failed"),
    (
        re.compile(r"Max retries exceeded|Temporary failure in name resolution|Name or service not known"),
        "a server could not be reached",
    ),
    (
        re.compile(r"connect\(\) timed out|RendezvousTimeoutError|client socket has timed out"),
        "ranks did not meet",
    ),
)
_OF_A_NODE = frozenset({"a GPU failed", "the node has no usable GPU", "the network failed"})
"""Faults that may come from one machine; disks and name servers serve all of them."""
_SCHEDULER: tuple[tuple[re.Pattern[str], FailureKind, str], ...] = (
    (
        re.compile(r"CANCELLED AT .* DUE TO PREEMPTION|job is preempted"),
        FailureKind.PREEMPTED,
        "the job was preempted",
    ),
    (
        re.compile(r"CANCELLED AT .* DUE TO TIME LIMIT|Job has timed out"),
        FailureKind.TIMEOUT,
        "the job reached its time limit",
    ),
    (re.compile(r"CANCELLED AT .* DUE TO NODE FAILURE|NODE_FAIL"), FailureKind.INFRA, "the node failed"),
)


def attribute_infrastructure(fault: Fault) -> Attribution | None:
    """The attribution of a fault that no candidate can cause, else None."""
    for pattern, what in _FAULTS:
        if pattern.search(fault.text):
            return Attribution(
                kind=FailureKind.INFRA,
                blame_candidate=False,
                cause=f"{what} under {fault.where()}: {fault.words()}",
                rank=fault.rank,
                evidence=fault.evidence,
            )
    return None


def may_be_the_nodes(why: Attribution) -> bool:
    """Whether a fault of the infrastructure may be that of the node on which it was seen."""
    return any(why.cause.startswith(what) for what in _OF_A_NODE)


def attribute_scheduler(
    lines: Sequence[LogLine], evidence: RunEvidence, context: AttributionContext
) -> Attribution | None:
    """The attribution where the scheduler says itself that it ended the job, else None.

    A time limit that cut the trial before its own time was used was that of a shared allocation: nobody's.
    """
    for pattern, kind, what in _SCHEDULER:
        line = search_lines(lines, pattern)
        if line is not None:
            if kind is FailureKind.TIMEOUT and _was_cut_short(evidence, context):
                kind, what = FailureKind.INFRA, "the allocation ended before the trial's own time was used"
            blame = None if kind is FailureKind.TIMEOUT else False
            return Attribution(
                kind=kind,
                blame_candidate=blame,
                cause=f"{what}: {line.text.strip()}",
                evidence=(line.quote(),),
            )
    return None


def _was_cut_short(evidence: RunEvidence, context: AttributionContext) -> bool:
    if evidence.wall_s is None or context.own_limit_s is None:
        return False
    return evidence.wall_s < context.own_limit_s
