"""Leaving no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable

from slurm.agent.procfs import ProcessStat

TERM_GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL."""

_KILL_LIMIT_S = 60.0
_PAUSE_S = 0.02


class LeftoverError(Exception):
    """Processes of the trial could not be ended, e.g. because they hang in the kernel."""


def reap_orphans(launcher: subprocess.Popen[bytes] | None, ended: Callable[[int, int], None]) -> None:
    """Collect exited children, calling `ended(pid, wait status)`; the launcher's status stays with it."""
    while True:
        try:
            child = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if child is None or child.si_pid == 0:
            return
        if launcher is not None and child.si_pid == launcher.pid:
            if launcher.poll() is None:
                return
            continue
        with contextlib.suppress(ChildProcessError):
            ended(*os.waitpid(child.si_pid, 0))


def end_everything(left: Callable[[], list[ProcessStat]], pump: Callable[[float], None]) -> None:
    """SIGTERM, three seconds, SIGKILL to every process that `left()` finds, until it finds none.

    `pump(seconds)` waits, reads the sockets and reaps meanwhile.

    Raises:
        LeftoverError: something survived SIGKILL for a minute.
    """
    for number, limit_s in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, _KILL_LIMIT_S)):
        deadline = time.monotonic() + limit_s
        told: set[int] = set()
        while time.monotonic() < deadline:
            found = left()
            if not found:
                return
            for process in found:
                if process.pid not in told:
                    send_signal(process.pid, number)
                    told.add(process.pid)
            pump(_PAUSE_S)
    raise LeftoverError(f"processes survive SIGKILL: {[process.pid for process in left()]}")


def send_signal(pid: int, number: int) -> None:
    """Signal a process that may be gone by now."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
