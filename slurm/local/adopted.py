"""Ending a trial from outside, also one that an earlier engine started."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from slurm.agent.listener import remove_socket_folders
from slurm.agent.procfs import ProcessStat, descendants, is_same_process, processes_of_trial
from slurm.agent.reap import send_signal
from slurm.local.identity import ProcessMark

_POLL_S = 0.05
_KILL_WAIT_S = 10.0


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll a condition until it holds; False when it did not within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True


def kill_trial(trial_dir: Path, owners: list[ProcessMark]) -> bool:
    """Kill the given processes of a trial and everything below them or started by it.

    Only processes whose start time and trial match are touched. True when nothing is left.
    """
    folder = str(trial_dir)
    doomed: list[ProcessStat] = []
    for owner in owners:
        if owner.runs(folder):
            doomed += descendants(owner.pid)
            send_signal(owner.pid, signal.SIGKILL)

    def all_gone() -> bool:
        left = [process for process in doomed if is_same_process(process.pid, process.start_ticks)]
        left += processes_of_trial(folder)
        for process in left:
            send_signal(process.pid, signal.SIGKILL)
        return not left and not any(owner.runs(folder) for owner in owners)

    if not wait_until(all_gone, _KILL_WAIT_S):
        return False
    remove_socket_folders(folder)
    return True
