"""Faults of disks, ports, networks, devices and schedulers: no candidate is to blame."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.schema.trial import Attribution, FailureKind
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
        "the network failed",
    ),
    (
        re.compile(r"connect\(\) timed out|RendezvousTimeoutError|client socket has timed out"),
        "ranks did not meet",
    ),
)
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


def attribute_scheduler(lines: Sequence[LogLine]) -> Attribution | None:
    """The attribution where the scheduler says itself that it ended the job, else None."""
    for pattern, kind, what in _SCHEDULER:
        line = search_lines(lines, pattern)
        if line is not None:
            blame = None if kind is FailureKind.TIMEOUT else False
            evidence = (line.quote(),)
            return Attribution(
                kind=kind, blame_candidate=blame, cause=f"{what}: {line.text.strip()}", evidence=evidence
            )
    return None
