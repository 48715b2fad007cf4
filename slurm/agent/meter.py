"""CPU time, memory and limits of one rank, read from outside of it."""

from __future__ import annotations

import os

from slurm.agent.procfs import read_data_limit, read_memory, read_stat


class RankMeter:
    """Keeps the last CPU time and the peaks of a process; sizes in bytes, times in seconds.

    `limit_seen_bytes` is the smallest data limit over the samples, `limit_lifted` whether the process trained
    on after a sample that showed a higher one than `limit_bytes` (or none at all).
    """

    def __init__(self, pid: int, limit_bytes: int | None) -> None:
        self.pid = pid
        self.cpu_s: float | None = None
        self.peak_vm_data_bytes: int | None = None
        self.peak_vm_hwm_bytes: int | None = None
        self.limit_seen_bytes: int | None = None
        self.limit_lifted = False
        self._is_lifted = False
        self.exit_code: int | None = None
        self.gone = False
        self._limit_bytes = limit_bytes
        stat = read_stat(pid)
        self._start_ticks = stat.start_ticks if stat else None

    def read_cpu(self) -> float | None:
        """CPU time used so far; a process that has exited keeps its last reading."""
        stat = read_stat(self.pid)
        if stat is None or stat.start_ticks != self._start_ticks:
            self.gone = True
            return self.cpu_s
        self.cpu_s = stat.cpu_s
        if not stat.alive:
            self.gone = True
            self.set_wait_status(stat.wait_status)
        return self.cpu_s

    def set_wait_status(self, status: int) -> None:
        """Note how the process ended: its exit code, or minus the signal's number."""
        self.exit_code = os.waitstatus_to_exitcode(status)

    def sample(self) -> None:
        """Read everything once."""
        self.read_cpu()
        if self.gone:
            return
        memory = read_memory(self.pid)
        self.peak_vm_data_bytes = _higher(self.peak_vm_data_bytes, memory.vm_data_bytes)
        self.peak_vm_hwm_bytes = _higher(self.peak_vm_hwm_bytes, memory.vm_hwm_bytes)
        if memory.vm_data_bytes is not None:
            self._sample_limit()

    def _sample_limit(self) -> None:
        limit = read_data_limit(self.pid)
        if limit is not None:
            known = self.limit_seen_bytes
            self.limit_seen_bytes = limit if known is None else min(known, limit)
        if self._limit_bytes is not None and (limit is None or limit > self._limit_bytes):
            self._is_lifted = True

    def note_update(self) -> None:
        """The rank completed an update: what was lifted since the last one was lifted for training."""
        self.limit_lifted = self.limit_lifted or self._is_lifted
        self._is_lifted = False

    def note_exception(self) -> None:
        """The rank reported an exception: out of memory, its probe lifts the soft limit to do so."""
        self._is_lifted = False


def _higher(known: int | None, new: int | None) -> int | None:
    if known is None or new is None:
        return new if known is None else known
    return max(known, new)
