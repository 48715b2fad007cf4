"""Append-only JSON lines with one writer, read by a process on another node while they grow.

A line is complete or torn, never changed. Every entry has `seq` (1, 2, 3, …), `at` (the writer's unix time)
and `kind`. The file is opened for every look: that is when network file systems show what others wrote.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

Entry = dict[str, Any]


def parse(line: bytes) -> Entry | None:
    """The entry of a line; None for what a crash in the middle of a write left."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("seq"), int):
        return None
    return entry if isinstance(entry.get("kind"), str) else None


def append(path: Path, kind: str, **values: Any) -> int:
    """Write an entry through to the disk and return its number; only the file's one writer may call it.

    A torn line of a crashed predecessor is closed first, so that it stays a line by itself.

    Raises:
        OSError: the disk refuses; what it took of the line is a torn line.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    with os.fdopen(descriptor, "r+b", buffering=0) as stream:
        text = stream.read() or b""
        entries = [entry for entry in map(parse, text.split(b"\n")) if entry is not None]
        number = 1 + max((int(entry["seq"]) for entry in entries), default=0)
        line = json.dumps({"seq": number, "at": time.time(), "kind": kind, **values}) + "\n"
        rest = (b"\n" if text and not text.endswith(b"\n") else b"") + line.encode()
        while rest:
            rest = rest[stream.write(rest) or 0 :]
        os.fsync(stream.fileno())
    return number


class LedgerReader:
    """Reads a ledger from its first entry, each entry once and in order.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._seen = 0

    def new(self) -> list[Entry]:
        """What was added since the last look; nothing while the file cannot be read or has a hole.

        A missing number means that a part of the file has not arrived here yet: the rest waits for it.
        """
        try:
            with self._path.open("rb") as stream:
                stream.seek(self._offset)
                text = stream.read()
        except OSError:
            return []
        entries: list[Entry] = []
        position = self._offset
        *complete, _torn = text.split(b"\n")
        for line in complete:
            position += len(line) + 1
            entry = parse(line)
            if entry is None or entry["seq"] <= self._seen:
                continue
            if entry["seq"] != self._seen + 1:
                break
            self._seen, self._offset = entry["seq"], position
            entries.append(entry)
        return entries
