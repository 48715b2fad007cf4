"""A launcher's log as clean lines with their rank and their number."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.schema.trial import EvidenceLine

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_RANK_PREFIX = re.compile(r"^\[(?:rank|default)(\d+)\]: ?")
_TASK_PREFIX = re.compile(r"^(\d{1,5}): ")
_LONGEST_QUOTE = 400


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line without its prefixes; `number` is 1-based, None where its place in the file is unknown."""

    number: int | None
    rank: int | None
    text: str

    def quote(self) -> EvidenceLine:
        """The line as evidence."""
        return EvidenceLine(line=self.number, text=self.text.strip()[:_LONGEST_QUOTE])


def read_log(text: str, first_line: int | None = 1) -> list[LogLine]:
    """Split a log; strip colours, overwritten progress bars and the rank prefixes of torchrun and srun."""
    lines = []
    labelled = _is_labelled(text)
    for offset, raw in enumerate(text.split("\n")):
        clean = _ANSI.sub("", raw.rstrip("\r").rpartition("\r")[2])
        rank = None
        match = _RANK_PREFIX.match(clean) or (_TASK_PREFIX.match(clean) if labelled else None)
        if match is not None:
            rank, clean = int(match.group(1)), clean[match.end() :]
            inner = _RANK_PREFIX.match(clean)
            if inner is not None:
                rank, clean = int(inner.group(1)), clean[inner.end() :]
        lines.append(LogLine(None if first_line is None else first_line + offset, rank, clean))
    return lines


def find_line(lines: Sequence[LogLine], needle: str, rank: int | None = None) -> LogLine | None:
    """First line that holds the text; a line of another rank than the one asked for is the second choice."""
    wanted = needle.strip()
    if not wanted:
        return None
    found = [line for line in lines if wanted in line.text]
    same = [line for line in found if line.rank == rank]
    return next(iter(same or found), None)


def search_lines(lines: Sequence[LogLine], pattern: re.Pattern[str]) -> LogLine | None:
    """First line that the pattern matches anywhere."""
    return next((line for line in lines if pattern.search(line.text)), None)


def _is_labelled(text: str) -> bool:
    """Whether srun --label put the task number in front of every line."""
    lines = [line for line in text.split("\n") if line]
    return len(lines) > 1 and all(_TASK_PREFIX.match(line) for line in lines)
