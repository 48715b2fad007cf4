"""Failures for want of memory: device, host, shared memory, a kernel's own resources."""

from __future__ import annotations

import re

from engine.schema.evidence import RankEvidence, RunEvidence
from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.device_memory import device_out_of_memory
from engine.trial.attribution.faults import Fault
from engine.units import BYTES_PER_GIB

_TORCH_CPU = re.compile(
    r"DefaultCPUAllocator: (?:can't allocate|not enough) memory: you tried to allocate (\d+) bytes"
)
_ALLOCATION_FAILED = re.compile(
    r"std::bad_alloc|\bMemoryError\b|ArrayMemoryError|Unable to allocate .* for an array"
)
_WITHOUT_NUMBERS = re.compile(
    r"can't start new thread|Resource temporarily unavailable|Cannot allocate memory|failed to map segment"
    r"|virtual memory exhausted|cc1plus: out of memory|Thread creation failed|pthread_create failed"
)
_SHARED_MEMORY = re.compile(
    r"insufficient shared memory|unable to open shared memory object|/dev/shm.*No space left"
    r"|Error while creating shared memory segment|posix_fallocate failed|killed by signal: Bus error"
)
_KERNEL_RESOURCE = re.compile(
    r"out of resource: (?P<name>[\w ]+?),? Required: (?P<required>\d+),? Hardware limit: ?(?P<limit>\d+)"
)
_OF_ANOTHER_PROCESS = re.compile(r"DataLoader worker|SubprocException")
# One request of so many times the limit is a wrong shape, not a need for memory.
_ABSURD_FACTOR = 64
_NEAR_LIMIT = 0.95


def attribute_memory(fault: Fault, evidence: RunEvidence) -> Attribution | None:
    """The attribution of a fault that is about memory, else None."""
    kernel = _KERNEL_RESOURCE.search(fault.text)
    if kernel is not None:
        return Attribution(
            kind=FailureKind.OOM_KERNEL_RESOURCE,
            blame_candidate=True,
            cause=f"a kernel needs more {kernel['name']} than the device has: {fault.words()}",
            rank=fault.rank,
            evidence=fault.evidence,
            required_bytes=int(kernel["required"]),
            limit_bytes=int(kernel["limit"]),
        )
    if _SHARED_MEMORY.search(fault.text):
        return Attribution(
            kind=FailureKind.OOM_SHM,
            blame_candidate=None,
            cause=f"shared memory ran out for {fault.where()}: {fault.words()}",
            rank=fault.rank,
            evidence=fault.evidence,
        )
    return device_out_of_memory(fault, evidence) or _host_out_of_memory(fault, evidence)


def enforced_limit(evidence: RunEvidence, rank: int | None) -> int | None:
    """Bytes of the host limit that stood during the run; None without one, or where it was seen lifted."""
    limit = evidence.memory_limit_bytes
    of_rank: RankEvidence | None = evidence.rank(rank) if rank is not None else None
    agent = of_rank.agent if of_rank is not None else None
    return None if agent is not None and agent.limit_lifted else limit


def _primitive_refused(fault: Fault, limit: int | None) -> bool:
    """OneDNN hides an allocator's refusal behind one sentence; far from the limit it is another failure."""
    held = fault.memory.vm_data_bytes if fault.memory is not None else None
    if limit is None or held is None or "could not create a primitive" not in fault.text:
        return False
    return held >= _NEAR_LIMIT * limit


def _host_out_of_memory(fault: Fault, evidence: RunEvidence) -> Attribution | None:
    refused = _TORCH_CPU.search(fault.text)
    limit = enforced_limit(evidence, fault.rank) if evidence.device == "cpu" else None
    allocator = refused is not None or _ALLOCATION_FAILED.search(fault.text) is not None
    if not allocator and not _primitive_refused(fault, limit):
        return _starved_without_numbers(fault, evidence)
    tried = int(refused[1]) if refused is not None else None
    required, remark = _requirement(fault, tried, limit)
    gap = required - limit if required is not None and limit is not None else None
    known = f" under its limit of {limit / BYTES_PER_GIB:.2f} GiB" if limit is not None else ""
    held = fault.memory.vm_data_bytes if fault.memory is not None else None
    return Attribution(
        kind=FailureKind.OOM_HOST,
        blame_candidate=True,
        cause=f"{fault.where()} ran out of host memory{known}{remark}: {fault.words()}",
        rank=fault.rank,
        evidence=fault.evidence,
        tried_gib=_gib(tried),
        allocated_gib=_gib(held),
        capacity_gib=_gib(limit),
        free_gib=_gib(max(0, limit - held)) if limit is not None and held is not None else None,
        memory_gap_gib=_gib(gap),
        required_bytes=required,
        limit_bytes=limit,
    )


def _requirement(fault: Fault, tried: int | None, limit: int | None) -> tuple[int | None, str]:
    """Bytes that were needed at least: held + asked for, and never less than the limit that refused it."""
    if limit is None:
        return None, ""
    if _OF_ANOTHER_PROCESS.search(fault.text):
        return None, " in a worker process"
    if tried is not None and tried > _ABSURD_FACTOR * limit:
        return None, " by one request so large that a wrong shape is more likely than a need"
    held = fault.memory.vm_data_bytes if fault.memory is not None else None
    return max(limit, (held or 0) + (tried or 0)), ""


def _starved_without_numbers(fault: Fault, evidence: RunEvidence) -> Attribution | None:
    if not _WITHOUT_NUMBERS.search(fault.text):
        return None
    limit = enforced_limit(evidence, fault.rank)
    if limit is None:
        return Attribution(
            kind=FailureKind.INFRA,
            blame_candidate=False,
            cause=f"the host refused {fault.where()} a thread or memory: {fault.words()}",
            rank=fault.rank,
            evidence=fault.evidence,
        )
    size = f"{limit / BYTES_PER_GIB:.2f} GiB"
    return Attribution(
        kind=FailureKind.OOM_HOST,
        blame_candidate=True,
        cause=f"{fault.where()} got no thread or memory under its limit of {size}; "
        f"no allocator said how much was needed: {fault.words()}",
        rank=fault.rank,
        evidence=fault.evidence,
        limit_bytes=limit,
    )


def _gib(n_bytes: int | None) -> float | None:
    return None if n_bytes is None else n_bytes / BYTES_PER_GIB
