"""Who may write: one epoch per writer, claimed by mkdir (atomic on NFS too), kept alive by a heartbeat."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path

from engine.durable import explain_disk_errors, write_json
from engine.errors import StudyBusyError

HEARTBEAT_S = 5.0
STALE_S = 60.0
"""A foreign writer is dead when its heartbeat is older; on this host the process itself is asked."""


def start_ticks(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (/proc/<pid>/stat field 22), None when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def claim_epoch(journal: Path) -> int:
    """Take over a study.

    Returns:
        The number of the epoch that this process owns from now on.

    Raises:
        StudyBusyError: a live engine owns the study.
    """
    latest = latest_epoch(journal)
    if latest is not None:
        owner = live_owner(journal, latest)
        if owner is not None:
            raise StudyBusyError(
                f"another engine works on this study: {owner}",
                file=str(journal.parent),
                hint="`infrarsi attach` watches it, `infrarsi stop` ends it",
            )
    epoch = 0 if latest is None else latest + 1
    with explain_disk_errors(journal):
        try:
            (journal / f"{epoch:06d}.claim").mkdir(mode=0o700)
        except FileExistsError:
            raise StudyBusyError(
                "another engine took over this study just now",
                file=str(journal.parent),
                hint="`infrarsi attach` watches it",
            ) from None
    beat(journal, epoch)
    return epoch


def latest_epoch(journal: Path) -> int | None:
    """The newest claimed epoch."""
    epochs = [int(path.name.split(".")[0]) for path in journal.glob("*.claim")]
    return max(epochs, default=None)


def beat(journal: Path, epoch: int) -> None:
    """Say that the owner of an epoch lives."""
    pid = os.getpid()
    write_json(
        journal / f"{epoch:06d}.claim" / "lease.json",
        {"pid": pid, "start_ticks": start_ticks(pid), "host": socket.gethostname(), "at": time.time()},
    )


def live_owner(journal: Path, epoch: int) -> str | None:
    """A description of the process that owns an epoch, None when it is dead or finished."""
    try:
        lease = json.loads((journal / f"{epoch:06d}.claim" / "lease.json").read_text())
    except (OSError, ValueError):
        return None
    if lease["host"] == socket.gethostname():
        alive = lease["pid"] != os.getpid() and start_ticks(lease["pid"]) == lease["start_ticks"]
    else:
        alive = time.time() - lease["at"] < STALE_S
    return f"process {lease['pid']} on {lease['host']}" if alive else None


def release(journal: Path, epoch: int) -> None:
    """Say that the owner of an epoch is finished."""
    (journal / f"{epoch:06d}.claim" / "lease.json").unlink(missing_ok=True)
