"""squeue: every job of ours in one answer."""

from __future__ import annotations

import os
from collections.abc import Container

from engine.schema.job import SchedulerFacts
from slurm.scheduler import fields
from slurm.scheduler.command import CommandResult
from slurm.scheduler.records import Sighting
from slurm.scheduler.states import parse_state

_SEPARATOR = "|"
# The name comes last: it may hold the separator. No width after the colon means no truncation.
_FIELDS = (
    "JobArrayID",
    "State",
    "Reason",
    "NodeList",
    "RestartCnt",
    "exit_code",
    "SubmitTime",
    "StartTime",
    "EndTime",
    "TimeLimit",
)
_FORMAT = ",".join(f"{field}:{_SEPARATOR}" for field in _FIELDS) + ",Name:"


def queue_argv(name: str | None = None) -> tuple[str, ...]:
    """The call: our jobs of all states, hidden partitions too; with a name only those so called."""
    named = () if name is None else ("-n", name)
    return ("squeue", "-h", "-a", "-t", "all", "-u", str(os.getuid()), *named, "-O", _FORMAT)


def parse_queue(text: str, as_of: float, *, only: Container[str] | None = None) -> list[Sighting]:
    """Read the answer; lines that are no job (banners, cluster headings, a torn last line) are skipped.

    Args:
        text: What squeue wrote.
        as_of: When it was asked, unix seconds.
        only: Job ids, without the part of an array's element; others are not looked at. None reads all.
    """
    sightings = []
    for line in text.split("\n"):
        if only is not None and line.partition(_SEPARATOR)[0].partition("_")[0] not in only:
            continue
        sighting = _parse_line(line, as_of)
        if sighting is not None:
            sightings.append(sighting)
    return sightings


def queue_problem(result: CommandResult) -> str | None:
    """Why the answer cannot be trusted to be complete; None when it can."""
    if not result.ok:
        return result.complaint
    lines = [line for line in result.stdout.split("\n") if line.strip() and not line.startswith("CLUSTER:")]
    if not lines and "error" in result.stderr.lower():
        # Wrappers of sites drop exit codes.
        return f"squeue: {result.stderr.strip().splitlines()[-1]}"
    if lines and not any(line.count(_SEPARATOR) >= len(_FIELDS) for line in lines):
        return f"squeue: the answer is not understood: {lines[0][:80]!r}"
    return None


def _parse_line(line: str, as_of: float) -> Sighting | None:
    parts = line.split(_SEPARATOR, len(_FIELDS))
    if len(parts) != len(_FIELDS) + 1 or not parts[0].strip()[:1].isdecimal():
        return None
    said = dict(zip(_FIELDS, (part.strip() for part in parts), strict=False))
    state = parse_state(said["State"])
    code, signal = fields.exit_of(said["exit_code"])
    start = fields.unix_time(said["StartTime"])
    waits = state.phase == "waiting"
    facts = SchedulerFacts(
        job_id=said["JobArrayID"],
        state=said["State"],
        reason=fields.text_of(said["Reason"]),
        exit_code=code if state.is_final else None,
        signal=signal if state.is_final else None,
        nodes=fields.nodes_of(said["NodeList"]),
        restarts=fields.count(said["RestartCnt"]),
        name=fields.text_of(parts[-1]),
        submitted_at=fields.unix_time(said["SubmitTime"]),
        started_at=None if waits else start,
        ended_at=fields.unix_time(said["EndTime"]) if state.is_final else None,
        time_limit_s=fields.seconds(said["TimeLimit"]),
        source="squeue",
        as_of=as_of,
    )
    return Sighting(facts, start_estimate=start if waits else None, was_suspended=state.suspended)
