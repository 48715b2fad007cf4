"""Memory of this process and of its device, in bytes."""

from __future__ import annotations

import resource
from typing import Any, Optional

from _infrarsi_probe import clocks

MAX_AGE_NS = 250_000_000
_LINES = {b"VmData": "vm_data", b"VmHWM": "vm_hwm", b"VmRSS": "vm_rss"}


class RecentMemory:
    """The process's memory, read at most four times a second: reading /proc costs 0.1 ms."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._read_at = 0
        self._values: dict[str, Optional[int]] = {}

    def recent(self) -> dict[str, Optional[int]]:
        """A reading that is at most 0.25 s old."""
        now = clocks.perf_ns()
        if not self._values or now - self._read_at > MAX_AGE_NS:
            self._values, self._read_at = reading(self._torch), now
        return self._values


def reading(torch: Any) -> dict[str, Optional[int]]:
    """Host memory from /proc and, once CUDA is in use, the allocator's peaks since start."""
    values: dict[str, Optional[int]] = {
        "vm_data": None,
        "vm_hwm": None,
        "vm_rss": None,
        "cuda_allocated_peak": None,
        "cuda_reserved_peak": None,
    }
    with open("/proc/self/status", "rb") as status:
        for line in status:
            name = _LINES.get(line.partition(b":")[0])
            if name is not None:
                values[name] = int(line.split()[1]) * 1024
    if torch is not None and torch.cuda.is_initialized():
        statistics = torch._C._cuda_memoryStats(torch.cuda.current_device())
        values["cuda_allocated_peak"] = statistics["allocated_bytes"]["all"]["peak"]
        values["cuda_reserved_peak"] = statistics["reserved_bytes"]["all"]["peak"]
    return values


def cuda_state(torch: Any) -> Optional[dict[str, int]]:
    """What the CUDA allocator holds now and what the device has left; None where CUDA is not in use."""
    if torch is None or not torch.cuda.is_initialized():
        return None
    statistics = torch._C._cuda_memoryStats(torch.cuda.current_device())
    free, total = torch.cuda.mem_get_info()
    return {
        "allocated": statistics["allocated_bytes"]["all"]["current"],
        "reserved": statistics["reserved_bytes"]["all"]["current"],
        "free": free,
        "total": total,
    }


def data_limit() -> tuple[Optional[int], Optional[int]]:
    """Soft and hard RLIMIT_DATA, None for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return (
        None if soft == resource.RLIM_INFINITY else soft,
        None if hard == resource.RLIM_INFINITY else hard,
    )


class RaisedDataLimit:
    """Context with the soft RLIMIT_DATA at the hard one, so that an out-of-memory record can be built.

    `soft` keeps the limit that stood when the failure happened; it is put back at the end.
    """

    def __init__(self) -> None:
        self.soft, self.hard = data_limit()
        self.raised = False

    def __enter__(self) -> RaisedDataLimit:
        if self.soft is not None and self.soft != self.hard:
            self._set(self.hard)
            self.raised = True
        return self

    def __exit__(self, *exception: object) -> None:
        if self.raised:
            self._set(self.soft)

    def _set(self, soft: Optional[int]) -> None:
        infinity = resource.RLIM_INFINITY
        wanted = infinity if soft is None else soft
        resource.setrlimit(resource.RLIMIT_DATA, (wanted, infinity if self.hard is None else self.hard))
