"""The second process of the disk checks: reads, races and answers what the first one writes.

Run as a file, `python -I peer.py MODE FOLDER COUNT`; answers with one JSON object. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIMIT_S = 20.0
PAYLOAD = 4096


def payload(version: int) -> bytes:
    """Content whose every part names its version: a torn or mixed read shows."""
    mark = f"{version:08d}".encode()
    return mark + b"." * PAYLOAD + mark


def is_whole(content: bytes) -> bool:
    """Whether a read gave exactly one version."""
    return len(content) == PAYLOAD + 16 and content[:8] == content[-8:]


def replace_file(path: Path, content: bytes) -> None:
    """Write through a temporary name and rename over what is there."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    temporary.replace(path)


def read_replaced(folder: Path, _count: int) -> dict[str, int]:
    """Read `target` again and again until `stop` is there."""
    seen = {"reads": 0, "missing": 0, "torn": 0}
    deadline = time.monotonic() + LIMIT_S
    (folder / "ready").touch()
    while time.monotonic() < deadline and not (folder / "stop").exists():
        try:
            whole = is_whole((folder / "target").read_bytes())
        except OSError:
            seen["missing"] += 1
            continue
        seen["reads"] += 1
        seen["torn"] += not whole
    return seen


def race(folder: Path, count: int) -> dict[str, int]:
    """Make numbered folders as fast as possible, once `go` is there; how many were made here."""
    deadline = time.monotonic() + LIMIT_S
    (folder / f"ready-{os.getpid()}").touch()
    while not (folder / "go").exists() and time.monotonic() < deadline:
        time.sleep(0.001)
    made = 0
    for number in range(count):
        with contextlib.suppress(FileExistsError):
            (folder / f"claim-{number}").mkdir()
            made += 1
    return {"made": made}


def follow(folder: Path, count: int) -> dict[str, int]:
    """Read appended lines, opening the file anew each time, until `count` came; bad = not as written."""
    deadline = time.monotonic() + LIMIT_S
    (folder / "ready").touch()
    seen = bad = offset = 0
    while seen < count and time.monotonic() < deadline:
        with contextlib.suppress(OSError), (folder / "lines").open("rb") as stream:
            stream.seek(offset)
            *lines, _rest = stream.read().split(b"\n")
            for line in lines:
                offset += len(line) + 1
                bad += line != appended_line(seen)
                seen += 1
        time.sleep(0.001)
    return {"seen": seen, "bad": bad}


def appended_line(number: int) -> bytes:
    """The n-th line, without its end."""
    return json.dumps({"n": number, "text": "." * 200}).encode()


def answer(folder: Path, count: int, limit_s: float = LIMIT_S) -> dict[str, int]:
    """Answer each new number in `ping` by the same one in `pong`, until `count` or `limit_s`."""
    deadline = time.monotonic() + limit_s
    (folder / "ready").touch()
    last = 0
    while last < count and time.monotonic() < deadline:
        number = read_number(folder / "ping")
        if number > last:
            last = number
            replace_file(folder / "pong", str(number).encode())
        time.sleep(0.001)
    return {"answered": last}


def read_number(path: Path) -> int:
    """The number in a file, 0 while there is none."""
    try:
        return int(path.read_bytes() or b"0")
    except (OSError, ValueError):
        return 0


def round_trips(folder: Path, count: int, limit_s: float) -> list[float]:
    """Ping an answering process: seconds that each round took; stops at the limit."""
    deadline = time.monotonic() + limit_s
    taken: list[float] = []
    for number in range(1, count + 1):
        begun = time.monotonic()
        replace_file(folder / "ping", str(number).encode())
        while read_number(folder / "pong") < number:
            if time.monotonic() > deadline:
                return taken
            time.sleep(0.001)
        taken.append(time.monotonic() - begun)
    return taken


MODES: dict[str, Callable[[Path, int], dict[str, int]]] = {
    "read": read_replaced,
    "race": race,
    "follow": follow,
    "answer": answer,
}

if __name__ == "__main__":
    sys.stdout.write(json.dumps(MODES[sys.argv[1]](Path(sys.argv[2]), int(sys.argv[3]))))
