"""Who may write: one epoch per writer, claimed by mkdir (atomic on NFS too), kept alive by a heartbeat."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from pathlib import Path

from engine.durable import explain_disk_errors, write_json
from engine.errors import InfraError, StudyBusyError
from engine.schema.base import Record

HEARTBEAT_S = 5.0
STALE_S = 60.0
"""A foreign writer is dead when its heartbeat is older; on this host the process itself is asked."""

_EPOCHS = "*.claim"


class Lease(Record):
    """What the owner of an epoch says of itself; `at` is unix time in seconds."""

    pid: int
    start_ticks: int | None
    host: str
    at: float
    released: bool = False


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
                hint="`infrarsi status` shows it, `infrarsi stop` ends it",
            )
    epoch = 0 if latest is None else latest + 1
    with explain_disk_errors(journal):
        try:
            _claim(journal, epoch).mkdir(mode=0o700)
        except FileExistsError:
            raise StudyBusyError(
                "another engine took over this study just now",
                file=str(journal.parent),
                hint="`infrarsi status` shows where it stands",
            ) from None
    try:
        beat(journal, epoch)
    except InfraError:
        # A claim that says nothing would keep everybody out for a while.
        with contextlib.suppress(OSError):
            _claim(journal, epoch).rmdir()
        raise
    return epoch


def latest_epoch(journal: Path) -> int | None:
    """The newest claimed epoch."""
    epochs = [int(path.name.split(".")[0]) for path in journal.glob(_EPOCHS)]
    return max(epochs, default=None)


def beat(journal: Path, epoch: int, *, released: bool = False) -> None:
    """Say that the owner of an epoch lives, or that it is finished."""
    pid = os.getpid()
    lease = Lease(
        pid=pid, start_ticks=start_ticks(pid), host=socket.gethostname(), at=time.time(), released=released
    )
    write_json(_claim(journal, epoch) / "lease.json", lease.model_dump())


def live_owner(journal: Path, epoch: int) -> str | None:
    """A description of the process that owns an epoch, None when it is dead or finished.

    A claim whose owner has not said anything readable yet counts as alive for STALE_S: it has just been made.
    """
    claim = _claim(journal, epoch)
    try:
        lease = Lease.model_validate_json((claim / "lease.json").read_bytes())
    except (OSError, ValueError):
        return "an engine that is just starting" if _is_young(claim) else None
    if lease.released:
        return None
    if lease.host == socket.gethostname():
        ticks = start_ticks(lease.pid)
        alive = lease.pid != os.getpid() and ticks is not None and ticks == lease.start_ticks
    else:
        alive = time.time() - lease.at < STALE_S
    return f"process {lease.pid} on {lease.host}" if alive else None


def release(journal: Path, epoch: int) -> None:
    """Say that the owner of an epoch is finished; where that cannot be written, its lease goes stale."""
    with contextlib.suppress(InfraError):
        beat(journal, epoch, released=True)


def _claim(journal: Path, epoch: int) -> Path:
    return journal / f"{epoch:06d}.claim"


def _is_young(claim: Path) -> bool:
    try:
        return time.time() - claim.stat().st_mtime < STALE_S
    except OSError:
        return False
