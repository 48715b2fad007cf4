"""What a process has cost so far, read from outside of it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.5


@dataclass(frozen=True)
class Expense:
    """CPU seconds of a process itself and of the children that it has waited for, at a moment."""

    at: float
    own_s: float
    children_s: float


@dataclass(frozen=True)
class WholeRun:
    """A process from its start to its end: CPU seconds, highest resident size, threads, libtorch or not."""

    expense: Expense
    peak_mib: float
    threads: int
    has_torch: bool


def expense(pid: int) -> Expense:
    """What a process, which may have ended but was not reaped, has cost so far."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    user, system, child_user, child_system = (int(field) / _TICKS_PER_SECOND for field in fields[11:15])
    return Expense(time.time(), user + system, child_user + child_system)


def peak_mib(pid: int) -> float:
    """The highest resident size so far; 0 once the process has ended."""
    return _status(pid, "VmHWM") / 1024


def has_torch(pid: int) -> bool:
    """Whether torch's library is mapped."""
    return "libtorch" in Path(f"/proc/{pid}/maps").read_text()


def watch_to_the_end(pid: int, limit_s: float) -> WholeRun:
    """Look at a child of this process until it ends; it is left to be reaped."""
    deadline = time.monotonic() + limit_s
    peak, threads, torch = 0.0, 0, False
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        assert time.monotonic() < deadline, f"still runs after {limit_s:g} s"
        peak = max(peak, peak_mib(pid))
        threads = max(threads, int(_status(pid, "Threads")))
        torch = torch or has_torch(pid)
        time.sleep(_LOOK_S)
    return WholeRun(expense(pid), peak, threads, torch)


def _status(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return float(value.split()[0])
    return 0.0
