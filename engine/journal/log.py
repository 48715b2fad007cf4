"""Append and read the journal; only a torn last line of a segment is tolerated."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.durable import explain_disk_errors, sync_folder
from engine.errors import IntegrityError
from engine.schema.study import Entry, Event


class JournalWriter:
    """The single writer of one epoch's segment; every entry is on disk when `append` returns."""

    def __init__(self, journal: Path, epoch: int) -> None:
        self.epoch = epoch
        self._path = journal / f"{epoch:06d}.jsonl"
        self._count = 0
        with explain_disk_errors(self._path):
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        sync_folder(journal)

    def append(self, data: Event, at: float) -> Entry:
        """Write one event durably.

        Raises:
            DiskFullError: no space is left; what was there stays readable.
        """
        entry = Entry(epoch=self.epoch, n=self._count, at=at, data=data)
        line = entry.model_dump_json().encode() + b"\n"
        size = os.fstat(self._descriptor).st_size
        with explain_disk_errors(self._path):
            try:
                written = os.write(self._descriptor, line)
                if written != len(line):
                    os.write(self._descriptor, line[written:])
                os.fsync(self._descriptor)
            except OSError:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, size)
                raise
        self._count += 1
        return entry

    def close(self) -> None:
        """Close the segment."""
        os.close(self._descriptor)


def read_entries(journal: Path) -> Iterator[Entry]:
    """All entries in order of epochs.

    Raises:
        IntegrityError: a line that is not the last of its segment does not parse.
    """
    for path in sorted(journal.glob("*.jsonl")):
        lines = path.read_bytes().split(b"\n")
        for index, line in enumerate(lines):
            if not line:
                continue
            is_torn_tail = index == len(lines) - 1
            try:
                entry = Entry.model_validate_json(line)
            except ValidationError as error:
                if is_torn_tail:
                    break
                problem = error.errors()[0]
                raise IntegrityError(
                    f"line {index + 1} of the journal does not parse: {problem['msg']}",
                    file=str(path),
                    key=".".join(str(part) for part in problem["loc"]) or None,
                    hint="restore the file from a backup; the other segments are untouched",
                ) from error
            if not is_torn_tail:
                yield entry
