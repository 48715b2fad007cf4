"""sacct: what accounting, where a site has it, remembers of jobs that the controller has forgotten."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from engine.schema.job import SchedulerFacts
from slurm.scheduler import fields
from slurm.scheduler.command import CommandResult
from slurm.scheduler.records import Sighting
from slurm.scheduler.states import parse_state

_FIELDS = (
    "JobID",
    "State",
    "ExitCode",
    "Reason",
    "NodeList",
    "Submit",
    "Start",
    "End",
    "Timelimit",
    "Suspended",
    "JobName",
)
# What Slurm writes until the name reaches its records: seen with fresh and with requeued jobs.
_NAMELESS = "allocation"
_DISABLED = "accounting storage is disabled"


def history_argv(since: float, *, job_ids: Iterable[str] = (), name: str | None = None) -> tuple[str, ...]:
    """The call: allocations only, earlier runs of requeued jobs too.

    Args:
        since: Unix seconds; without it sacct looks back to midnight, or to an older job with the same id.
        job_ids: Jobs to look up.
        name: Or the jobs with this name.
    """
    start = datetime.datetime.fromtimestamp(since).strftime("%Y-%m-%dT%H:%M:%S")
    wanted = ("--name", name) if name is not None else ("-j", ",".join(job_ids))
    return ("sacct", "-n", "-X", "-P", "--duplicates", "-S", start, *wanted, "-o", ",".join(_FIELDS))


def says_disabled(result: CommandResult) -> bool:
    """Whether the site has no accounting at all, as opposed to accounting that does not answer now."""
    if result.returncode is None:
        return result.problem == "not found"
    said = f"{result.stderr}\n{result.stdout}".lower()
    return not result.ok and _DISABLED in said


def parse_history(text: str, as_of: float) -> list[Sighting]:
    """Read the answer: one sighting a job, its last run; earlier runs of the same id count as restarts."""
    runs: dict[str, list[Sighting]] = {}
    for line in text.split("\n"):
        sighting = _parse_line(line, as_of)
        if sighting is not None:
            runs.setdefault(sighting.facts.job_id, []).append(sighting)
    return [_last_of(of_one_job) for of_one_job in runs.values()]


def _last_of(runs: list[Sighting]) -> Sighting:
    # A requeue keeps id, name and submission's order, but its record gets the time of the requeue as Submit.
    last = max(enumerate(runs), key=lambda entry: (entry[1].facts.submitted_at or 0.0, entry[0]))[1]
    same_job = [
        run for run in runs if None in (run.facts.name, last.facts.name) or run.facts.name == last.facts.name
    ]
    facts = last.facts.model_copy(update={"restarts": len(same_job) - 1})
    return Sighting(facts, was_suspended=any(run.was_suspended for run in same_job))


def _parse_line(line: str, as_of: float) -> Sighting | None:
    parts = line.split("|", len(_FIELDS) - 1)
    if len(parts) != len(_FIELDS) or not parts[0].strip()[:1].isdecimal():
        return None
    said = dict(zip(_FIELDS, (part.strip() for part in parts), strict=True))
    state = parse_state(said["State"])
    code, signal = fields.exit_of(said["ExitCode"])
    facts = SchedulerFacts(
        job_id=said["JobID"],
        state=said["State"],
        reason=fields.text_of(said["Reason"]),
        exit_code=code if state.is_final else None,
        signal=signal if state.is_final else None,
        nodes=fields.nodes_of(said["NodeList"]),
        name=None if said["JobName"] == _NAMELESS else fields.text_of(said["JobName"]),
        submitted_at=fields.unix_time(said["Submit"]),
        started_at=None if state.phase == "waiting" else fields.unix_time(said["Start"]),
        ended_at=fields.unix_time(said["End"]) if state.is_final else None,
        time_limit_s=fields.seconds(said["Timelimit"]),
        source="sacct",
        as_of=as_of,
    )
    return Sighting(facts, was_suspended=state.suspended or bool(fields.seconds(said["Suspended"])))
