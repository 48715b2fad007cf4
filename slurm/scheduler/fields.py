"""The small texts inside Slurm's answers: times, durations, exit codes, node lists, job ids."""

from __future__ import annotations

import datetime
import re

from slurm.scheduler import hostlist

_NOTHING = frozenset(
    {"", "n/a", "none", "(null)", "null", "unknown", "not_set", "invalid", "unlimited", "partition_limit"}
)
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?(?:\.\d+)?")
_ARRAY_ID = re.compile(r"(\d+)_\[([^\]]*)\]?.*")
_ELEMENT = re.compile(r"(\d+)_(\d+)")


def text_of(text: str | None) -> str | None:
    """The text, or None for Slurm's many words for nothing."""
    if text is None or text.strip().lower() in _NOTHING:
        return None
    return text.strip()


def unix_time(text: str | None) -> float | None:
    """Unix seconds of `1796049600` or of a local `2026-11-30T14:40:00`; None for anything else."""
    said = text_of(text)
    if said is None:
        return None
    try:
        if said.isdecimal():
            return float(said) or None
        return datetime.datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError):
        return None


def seconds(text: str | None) -> float | None:
    """Seconds of `days-hours:minutes:seconds`, with or without days and hours; None for no limit."""
    said = text_of(text)
    match = _DURATION.fullmatch(said) if said else None
    if match is None:
        return None
    days, first, second, third = match.groups()
    if days is not None:
        return int(days) * 86400.0 + int(first) * 3600 + int(second or 0) * 60 + int(third or 0)
    if third is not None:
        return int(first) * 3600.0 + int(second) * 60 + int(third)
    return int(first) * 60.0 + int(second or 0)


def exit_of(text: str | None) -> tuple[int | None, int | None]:
    """Exit code and signal (None for no signal) of `code:signal`, or of a raw wait status."""
    code, colon, signal = (text or "").strip().partition(":")
    if not code.isdecimal():
        return None, None
    if not colon:
        status = int(code)
        return (status >> 8) & 0xFF, status & 0x7F or None
    return int(code), (int(signal) or None) if signal.isdecimal() else None


def count(text: str | None) -> int:
    """A number that is zero where nothing readable is said."""
    said = (text or "").strip()
    return int(said) if said.isdecimal() else 0


def nodes_of(text: str | None) -> tuple[str, ...]:
    """Names of the nodes; a list that cannot be read is kept as one name rather than lost."""
    if text_of(text) is None:
        return ()
    try:
        return tuple(hostlist.expand(text or ""))
    except ValueError:
        return ((text or "").strip(),)


def names_job(field: str, job_id: str) -> bool:
    """Whether the id that Slurm printed stands for the job: `7`, `7_2`, or `7_[0-3,8%2]` while waiting."""
    if field == job_id:
        return True
    waiting = _ARRAY_ID.fullmatch(field)
    element = _ELEMENT.fullmatch(job_id)
    if waiting is None or element is None or waiting.group(1) != element.group(1):
        return False
    wanted = int(element.group(2))
    for part in waiting.group(2).partition("%")[0].split(","):
        low, _, high = part.partition("-")
        high = (high or low).partition(":")[0]
        if low.isdecimal() and high.isdecimal() and int(low) <= wanted <= int(high):
            return True
    return False
