"""Does the study's disk keep what journals and claims rely on? Standard library only."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurm.doctor import peer
from slurm.doctor.check import Check
from slurm.doctor.mounts import judged, mount_of, parse_mounts

GROUP = "study folder"
PREFIX = ".infrarsi-doctor-"

_REPLACEMENTS = 200
_CLAIMS = 200
_LINES = 300
_ROUNDS = 20
_SYNCS = 8
_GIB = 1 << 30
_LITTLE_SPACE = 10 * _GIB
_NO_SPACE = _GIB // 2
_FEW_INODES = 10_000
_SLOW_SYNC_S = 0.5
_LATE_S = 5.0


def existing_part(folder: Path) -> Path:
    """The folder itself, or the nearest one above it that exists: a study's folder is made later."""
    path = folder.resolve()
    while not path.is_dir():
        path = path.parent
    return path


@contextlib.contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """A folder of ours for the checks, removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def storage_checks(folder: Path, *, on_cluster: bool) -> list[Check]:
    """All checks of the disk that a study would lie on; what cannot be made is told, never raised."""
    place = existing_part(folder)
    checks = [_kind(place, on_cluster), _space(place), *_quota(place)]
    try:
        with scratch(place) as work:
            for name, probe in _PROBES.items():
                part = work / name
                part.mkdir()
                checks.append(_made(name, probe, part))
    except OSError as error:
        checks.append(
            Check(
                "writable", GROUP, "fail", f"{place}: {error.strerror}", "no study can be written here", _HINT
            )
        )
    else:
        checks.append(Check("writable", GROUP, "ok", str(place)))
    return checks


_HINT = "choose another --study-dir"


def _made(name: str, probe: Callable[[Path], Check], part: Path) -> Check:
    try:
        return probe(part)
    except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
        return Check(
            name, GROUP, "fail", f"the check ended with {error!r}", "the disk cannot be relied on", _HINT
        )


def _kind(place: Path, on_cluster: bool) -> Check:
    try:
        mounts = parse_mounts(Path("/proc/mounts").read_text(errors="replace"))
    except OSError:
        mounts = []
    mount = mount_of(place, mounts)
    if mount is None:
        return Check("file_system", GROUP, "skipped", "the kind of file system is not known")
    status, meaning, hint = judged(mount, on_cluster=on_cluster)
    return Check("file_system", GROUP, status, f"{mount.kind} at {mount.point}", meaning, hint)


def _space(place: Path) -> Check:
    facts = os.statvfs(place)
    free = facts.f_bavail * facts.f_frsize
    found = f"{free / _GIB:.1f} GiB free"
    inodes = facts.f_favail if facts.f_files else None
    if inodes is not None:
        found += f", {inodes:,} files more"
    if free < _NO_SPACE:
        return Check("space", GROUP, "fail", found, "a study would stop soon", "free some space")
    if free < _LITTLE_SPACE or (inodes is not None and inodes < _FEW_INODES):
        meaning = "every trial keeps a copy of the project, its logs and what it wrote"
        return Check("space", GROUP, "warn", found, meaning, "free some space, or choose another --study-dir")
    return Check("space", GROUP, "ok", found)


def _quota(place: Path) -> list[Check]:
    """What `quota` says, where the site has it: it exits with an error when a limit is exceeded."""
    if shutil.which("quota") is None:
        return []
    try:
        done = subprocess.run(
            ["quota", "-w"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.strip() for line in done.stdout.splitlines() if "*" in line]
    if not lines:
        return []
    return [
        Check(
            "quota",
            GROUP,
            "warn",
            "; ".join(lines),
            f"a limit is exceeded; {place} may be on it",
            "see `quota -s`",
        )
    ]


@contextlib.contextmanager
def _peers(mode: str, folder: Path, count: int, number: int = 1) -> Iterator[list[subprocess.Popen[str]]]:
    """Second processes, ready to go; ended in any case."""
    words = [sys.executable, "-I", str(Path(peer.__file__)), mode, str(folder), str(count)]
    processes = [
        subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    try:
        deadline = time.monotonic() + peer.LIMIT_S
        while len(list(folder.glob("ready*"))) < number and time.monotonic() < deadline:
            time.sleep(0.002)
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _told(process: subprocess.Popen[str]) -> dict[str, Any]:
    text, _ = process.communicate(timeout=peer.LIMIT_S + 5.0)
    return dict(json.loads(text))


def _rename(folder: Path) -> Check:
    target = folder / "target"
    peer.replace_file(target, peer.payload(0))
    with _peers("read", folder, 0) as (reader,):
        for version in range(1, _REPLACEMENTS + 1):
            peer.replace_file(target, peer.payload(version))
        (folder / "stop").touch()
        seen = _told(reader)
    reads, torn, missing = seen["reads"], seen["torn"], seen["missing"]
    found = f"{_REPLACEMENTS} replacements under {reads} reads, {torn} torn, {missing} missing"
    if torn or missing:
        return Check("rename", GROUP, "fail", found, "files are not replaced in one step", _HINT)
    return Check("rename", GROUP, "ok", found, "a file is complete or absent")


def _mkdir(folder: Path) -> Check:
    with _peers("race", folder, _CLAIMS, 2) as racers:
        (folder / "go").touch()
        made = sum(_told(racer)["made"] for racer in racers)
    found = f"{_CLAIMS} folders raced for, {made} made"
    if made != _CLAIMS:
        return Check("mkdir", GROUP, "fail", found, "two engines could claim one study or trial", _HINT)
    return Check("mkdir", GROUP, "ok", found, "claims are exclusive")


def _append(folder: Path) -> Check:
    with _peers("follow", folder, _LINES) as (reader,):
        descriptor = os.open(folder / "lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            for number in range(_LINES):
                os.write(descriptor, peer.appended_line(number) + b"\n")
        finally:
            os.close(descriptor)
        seen = _told(reader)
    found = f"{_LINES} lines appended, {seen['seen']} seen, {seen['bad']} of them damaged"
    if seen["bad"]:
        return Check("append", GROUP, "fail", found, "journals would be damaged", _HINT)
    if seen["seen"] < _LINES:
        return Check("append", GROUP, "fail", found, "what is appended does not arrive", _HINT)
    return Check("append", GROUP, "ok", found, "readers see whole lines, in order")


def _sync(folder: Path) -> Check:
    taken = []
    for number in range(_SYNCS):
        begun = time.monotonic()
        descriptor = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, b"." * 4096)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        taken.append(time.monotonic() - begun)
    median_s = statistics.median(taken)
    found = f"a write is on disk after {median_s * 1000:.1f} ms"
    if median_s > _SLOW_SYNC_S:
        return Check("fsync", GROUP, "warn", found, "every event of a study waits so long", _HINT)
    return Check("fsync", GROUP, "ok", found)


def _lock(folder: Path) -> Check:
    with (folder / "lock").open("w") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            found = "flock works here"
        except OSError as error:
            found = f"flock does not work here ({errno.errorcode.get(error.errno or 0, error.errno)})"
    return Check("lock", GROUP, "ok", found, "file locks are not used: they lie on many network disks")


def _delay(folder: Path) -> Check:
    with _peers("answer", folder, _ROUNDS):
        taken = peer.round_trips(folder, _ROUNDS, 10.0)
    return delay_check(taken, "another process of this machine")


def delay_check(taken: list[float], other: str) -> Check:
    """How late another process sees a change: half a round trip."""
    if not taken:
        meaning = "files written here are not seen there: trials would never be seen to end"
        return Check("delay", GROUP, "fail", f"no answer from {other}", meaning, "use a disk that both share")
    late_s = statistics.median(taken) / 2
    found = f"{other} sees a change after {late_s * 1000:.0f} ms (at most {max(taken) / 2 * 1000:.0f} ms)"
    if late_s > _LATE_S:
        return Check(
            "delay",
            GROUP,
            "warn",
            found,
            "starts and ends of trials are noticed so late",
            "see acregmax of the mount",
        )
    return Check("delay", GROUP, "ok", found)


_PROBES: dict[str, Callable[[Path], Check]] = {
    "rename": _rename,
    "mkdir": _mkdir,
    "append": _append,
    "fsync": _sync,
    "lock": _lock,
    "delay": _delay,
}
