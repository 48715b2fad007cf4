"""Is the process that a file names still that process? A pid alone is no answer after a crash or a reboot."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

from slurm.agent.procfs import (
    boot_id,
    is_same_process,
    read_command_line,
    read_environ,
    read_stat,
)
from slurm.local.detached import AGENT_MARK
from slurm.trial_files import read_object


@dataclass(frozen=True)
class ProcessMark:
    """A process as it was written down: where it ran, since when, for which submission."""

    pid: int
    start_ticks: int | None
    boot_id: str
    host: str
    token: str

    @property
    def here(self) -> bool:
        """Whether it was started on this machine, since its last boot."""
        return self.boot_id == boot_id()

    def runs(self, trial_dir: str) -> bool:
        """Whether it still runs here, with the same start time and for the same trial."""
        if self.start_ticks is None or not self.here or not is_same_process(self.pid, self.start_ticks):
            return False
        wanted = os.fsencode(trial_dir)
        environment = read_environ(self.pid)
        return environment.get(os.fsencode(AGENT_MARK)) == wanted or wanted in read_command_line(self.pid)


def mark_of(pid: int, token: str) -> ProcessMark:
    """Write a running process down."""
    stat = read_stat(pid)
    return ProcessMark(pid, stat.start_ticks if stat else None, boot_id(), socket.gethostname(), token)


def read_mark(path: Path) -> ProcessMark | None:
    """The process that a file names; None when there is no such file or it is of another make."""
    raw = read_object(path)
    if raw is None:
        return None
    try:
        ticks = raw["start_ticks"]
        return ProcessMark(
            pid=int(raw["pid"]),
            start_ticks=None if ticks is None else int(ticks),
            boot_id=str(raw["boot_id"]),
            host=str(raw["host"]),
            token=str(raw["token"]),
        )
    except (KeyError, TypeError, ValueError):
        return None
