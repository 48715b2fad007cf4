"""What Linux says about processes: the evidence that does not come from inside the training process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_MAX_DEPTH = 1000


@dataclass(frozen=True)
class ProcessStat:
    """/proc/<pid>/stat: CPU time (user + system, all threads) in seconds, start time in ticks since boot."""

    pid: int
    ppid: int
    state: str
    cpu_s: float
    start_ticks: int
    wait_status: int

    @property
    def alive(self) -> bool:
        """False for a process that has exited and only waits to be reaped."""
        return self.state not in ("Z", "X")


@dataclass(frozen=True)
class ProcessMemory:
    """/proc/<pid>/status: bytes; None where the process has no memory any more."""

    vm_data_bytes: int | None
    vm_hwm_bytes: int | None


def read_stat(pid: int) -> ProcessStat | None:
    """The process's state, None when there is no such process."""
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = text.rpartition(b")")[2].split()
    if len(fields) < 50:
        return None
    cpu_s = (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND
    return ProcessStat(pid, int(fields[1]), fields[0].decode(), cpu_s, int(fields[19]), int(fields[49]))


def read_memory(pid: int) -> ProcessMemory:
    """Size of the data segment now and the highest resident size so far."""
    found: dict[bytes, int] = {}
    try:
        lines = (_PROC / str(pid) / "status").read_bytes().splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(b":")
        if name in (b"VmData", b"VmHWM"):
            found[name] = int(value.split()[0]) * 1024
    return ProcessMemory(found.get(b"VmData"), found.get(b"VmHWM"))


def read_data_limit(pid: int) -> int | None:
    """Soft RLIMIT_DATA in bytes; None when unlimited or not readable."""
    try:
        lines = (_PROC / str(pid) / "limits").read_text().splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("Max data size"):
            soft = line[len("Max data size") :].split()[0]
            return int(soft) if soft.isdigit() else None
    return None


def read_environ(pid: int) -> dict[bytes, bytes]:
    """Environment at the last exec; empty when not ours to read."""
    try:
        entries = (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return {}
    return dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)


def read_command_line(pid: int) -> bytes:
    """Arguments separated by NUL; empty when not readable."""
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def read_comm(pid: int) -> str | None:
    """Name of the program that a process runs, at most 15 characters; None when there is no such process."""
    try:
        return (_PROC / str(pid) / "comm").read_text(errors="replace").rstrip("\n")
    except OSError:
        return None


def owner(pid: int) -> int | None:
    """The user under which a process runs; None when there is no such process."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def boot_id() -> str:
    """Identifies this boot of this machine: process ids mean nothing beyond it."""
    return (_PROC / "sys/kernel/random/boot_id").read_text().strip()


def is_same_process(pid: int, start_ticks: int) -> bool:
    """Whether the process of that start time still runs (a recycled pid has another start time)."""
    stat = read_stat(pid)
    return stat is not None and stat.alive and stat.start_ticks == start_ticks


def parents(pid: int) -> Iterator[int]:
    """The parent of a process, its parent, and so on up to the first process."""
    for _ in range(_MAX_DEPTH):
        stat = read_stat(pid)
        if stat is None or stat.ppid <= 0:
            return
        pid = stat.ppid
        yield pid


def is_descendant(pid: int, ancestor: int) -> bool:
    """Whether walking up the parents of `pid` meets `ancestor`; a process is no descendant of itself."""
    return ancestor in parents(pid)


def all_pids() -> list[int]:
    """Every process id visible here."""
    return [int(name) for name in os.listdir(_PROC) if name.isdigit()]


def descendants(root: int) -> list[ProcessStat]:
    """Every process below `root` that still runs, in no particular order."""
    children: dict[int, list[ProcessStat]] = {}
    for pid in all_pids():
        stat = read_stat(pid)
        if stat is not None:
            children.setdefault(stat.ppid, []).append(stat)
    found: list[ProcessStat] = []
    open_pids = [root]
    while open_pids:
        for stat in children.get(open_pids.pop(), []):
            open_pids.append(stat.pid)
            if stat.alive:
                found.append(stat)
    return found


def processes_of_trial(trial_dir: str, socket_path: str | None = None) -> list[ProcessStat]:
    """Training processes of a trial, known by the probe folder at the front of their PYTHONPATH.

    Finds them also when the agent is gone and they have been handed to another parent.

    Args:
        trial_dir: The trial folder.
        socket_path: Leave out those that belong to another socket: to another node on the same machine.
    """
    prefix = os.fsencode(trial_dir.rstrip("/") + "/")
    found = []
    for pid in all_pids():
        environ = read_environ(pid) if pid != os.getpid() else {}
        if not environ.get(b"PYTHONPATH", b"").startswith(prefix):
            continue
        path = os.fsencode(socket_path) if socket_path is not None else None
        if path is None or environ.get(b"INFRARSI_PROBE_SOCKET", path) == path:
            stat = read_stat(pid)
            if stat is not None and stat.alive:
                found.append(stat)
    return found
