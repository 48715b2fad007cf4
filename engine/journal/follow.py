"""Read what is appended to a journal, or to any file of lines, while somebody else writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import ValidationError

from engine.errors import IntegrityError
from engine.schema.study import Entry


class LineTail:
    """Complete lines of a growing file, each once; the file is opened anew at each look (NFS shows it then).

    Args:
        path: May not exist yet.
        skip_present: Leave out what is there already.
    """

    def __init__(self, path: Path, *, skip_present: bool = False) -> None:
        self.path = path
        self._offset = 0
        if skip_present:
            for _ in self.new_lines():
                pass

    def new_lines(self) -> Iterator[bytes]:
        """Lines that were completed since the last call, without their ends; a line not taken comes again."""
        try:
            with self.path.open("rb") as stream:
                size = stream.seek(0, 2)
                self._offset = min(self._offset, size)  # a full disk may have cost the writer its last line
                stream.seek(self._offset)
                content = stream.read()
        except FileNotFoundError:
            return
        *complete, _ = content.split(b"\n")
        for line in complete:
            yield line
            self._offset += len(line) + 1


class JournalFollower:
    """Entries of a journal in order, those of a live writer as they come."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._tails: dict[str, LineTail] = {}

    def new_entries(self) -> Iterator[Entry]:
        """Entries since the last call.

        Raises:
            IntegrityError: a complete line does not parse.
        """
        for path in sorted(self._journal.glob("*.jsonl")):
            tail = self._tails.setdefault(path.name, LineTail(path))
            for line in tail.new_lines():
                if line:
                    yield _parsed(line, path)


def _parsed(line: bytes, path: Path) -> Entry:
    try:
        return Entry.model_validate_json(line)
    except ValidationError as error:
        raise IntegrityError(
            f"a line of the journal does not parse: {error.errors()[0]['msg']}",
            file=str(path),
            hint="`infrarsi status` tells which; restore the file from a backup",
        ) from error
