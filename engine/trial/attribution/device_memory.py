"""The device allocator's refusal: its sentence in all versions of torch, and the numbers in it."""

from __future__ import annotations

import re

from engine.schema.evidence import RunEvidence
from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.faults import Fault
from engine.trial.attribution.sizes import SIZE, search_gib
from engine.units import BYTES_PER_GIB

_REFUSED = re.compile(r"\b(?:CUDA|HIP|XPU|NPU) out of memory\b")
_DRIVER = re.compile(r"CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED|Failed to CUDA calloc")
_TRIED = re.compile(rf"Tried to allocate {SIZE}")
_CAPACITY = re.compile(rf"total capaci?ty of {SIZE}|{SIZE} total capacity")
_FREE = re.compile(rf"of which {SIZE} is free|{SIZE} free\b")
_ALLOCATED = re.compile(rf"{SIZE} is allocated by PyTorch|{SIZE} already allocated")
_RESERVED_TOTAL = re.compile(rf"{SIZE} (?:reserved in total by PyTorch|cached)")
_RESERVED_UNUSED = re.compile(rf"{SIZE} is reserved by PyTorch but unallocated")
_OWN = re.compile(rf"this process has {SIZE} memory in use")
_ALLOWED = re.compile(rf"{SIZE} allowed")
# A share of the device that other processes may hold before the failure is theirs.
_FOREIGN_SHARE = 0.10


def device_out_of_memory(fault: Fault, evidence: RunEvidence) -> Attribution | None:
    """The attribution of a device allocator's refusal, else None."""
    text = fault.text
    if _DRIVER.search(text) and not _REFUSED.search(text):
        return Attribution(
            kind=FailureKind.OOM_GPU,
            blame_candidate=True,
            cause=f"{fault.where()} ran out of device memory outside torch's allocator: {fault.words()}",
            rank=fault.rank,
            evidence=fault.evidence,
        )
    if fault.class_name != "OutOfMemoryError" and not _REFUSED.search(text):
        return None
    numbers = _numbers(fault)
    others = _held_by_others(text, numbers)
    foreign = others is not None and others > _FOREIGN_SHARE * (numbers["capacity"] or 0.0)
    tried, allocated = numbers["tried"], numbers["allocated"]
    limit = _limit_gib(text, numbers["capacity"], evidence)
    required = allocated + tried if allocated is not None and tried is not None else None
    remark = f", of which other processes held {others:.2f} GiB" if foreign else ""
    return Attribution(
        kind=FailureKind.INFRA if foreign else FailureKind.OOM_GPU,
        blame_candidate=not foreign,
        cause=f"{fault.where()} ran out of device memory{remark}: {fault.words()}",
        rank=fault.rank,
        evidence=fault.evidence,
        tried_gib=tried,
        free_gib=numbers["free"],
        capacity_gib=numbers["capacity"],
        allocated_gib=allocated,
        reserved_gib=numbers["reserved"],
        memory_gap_gib=_difference(tried, numbers["free"]),
        required_bytes=_bytes(required) if evidence.device == "cuda" else None,
        limit_bytes=_bytes(limit),
    )


def _numbers(fault: Fault) -> dict[str, float | None]:
    """GiB from the sentence; what it leaves out comes from the probe's reading of the allocator."""
    text, state = fault.text, fault.cuda_memory
    allocated = _first(_ALLOCATED, text)
    reserved = _first(_RESERVED_TOTAL, text)
    unused = _first(_RESERVED_UNUSED, text)
    if reserved is None and allocated is not None and unused is not None:
        reserved = allocated + unused
    numbers = {
        "tried": _first(_TRIED, text),
        "capacity": _first(_CAPACITY, text),
        "free": _first(_FREE, text),
        "allocated": allocated,
        "reserved": reserved,
    }
    if state is not None:
        seen = {
            "capacity": state.total_bytes,
            "free": state.free_bytes,
            "allocated": state.allocated_bytes,
            "reserved": state.reserved_bytes,
        }
        for name, n_bytes in seen.items():
            if numbers[name] is None and n_bytes is not None:
                numbers[name] = n_bytes / BYTES_PER_GIB
    return numbers


def _held_by_others(text: str, numbers: dict[str, float | None]) -> float | None:
    own = search_gib(_OWN, text)
    capacity, free = numbers["capacity"], numbers["free"]
    return None if own is None or capacity is None or free is None else capacity - free - own


def _limit_gib(text: str, capacity: float | None, evidence: RunEvidence) -> float | None:
    planned = evidence.memory_limit_bytes
    limits = [capacity, _first(_ALLOWED, text), None if planned is None else planned / BYTES_PER_GIB]
    return min((limit for limit in limits if limit is not None), default=None)


def _first(pattern: re.Pattern[str], text: str) -> float | None:
    """Like search_gib for a pattern with alternatives."""
    match = pattern.search(text)
    if match is None:
        return None
    found = next(group for group in match.groups() if group is not None)
    return search_gib(re.compile(SIZE), found)


def _difference(tried: float | None, free: float | None) -> float | None:
    return None if tried is None or free is None else tried - free


def _bytes(size_gib: float | None) -> int | None:
    return None if size_gib is None else round(size_gib * BYTES_PER_GIB)
