"""Handing a script to Slurm, once: an answer that is lost is looked up before anything is tried again."""

from __future__ import annotations

import datetime as dt
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InfrastructureError, TaskFileError
from engine.schema.job import SchedulerFacts
from slurm.scheduler.command import CommandResult, SlurmCommands
from slurm.scheduler.hints import hint_for, may_have_arrived, never_arrived, words_of
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from slurm.scheduler.states import parse_state

PAUSES_S = (3.0, 10.0, 30.0)
"""Pauses after a submission without an answer; in each the job may still turn up."""

_CLOCK_SKEW_S = 120.0
_FARTHEST_START_S = 366 * 86400.0
_JOB_ID = re.compile(r"^(?:Submitted batch job )?(\d+)(?:;\S+)?\s*$", re.MULTILINE)
_START = re.compile(r"to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")


class NoAnswerError(InfrastructureError):
    """Slurm said neither yes nor no: a job of this name may turn up."""

    kind = "scheduler_unavailable"


@dataclass(frozen=True)
class TestOnly:
    """What `sbatch --test-only` said: its words as they are, and the start it expects in unix seconds."""

    __test__ = False

    ok: bool
    text: str
    start_estimate: float | None = None
    hint: str | None = None


def submit(
    commands: SlurmCommands,
    source: StateSource,
    script: Path,
    name: str,
    *,
    pauses_s: Sequence[float] = PAUSES_S,
    sleep: Callable[[float], None] = time.sleep,
) -> str:
    """Submit a script whose job has this unique name.

    A call without an answer may have queued the job, so it is looked up by name, twice with a pause between,
    before the script is submitted again; where nobody can be asked it is not submitted again.

    Returns:
        The job's id.

    Raises:
        TaskFileError: Slurm refuses the request for something that the task file asks for.
        NoAnswerError: Slurm gives no answer; the job may turn up.
        InfrastructureError: Slurm refuses for another reason.
    """
    since = time.time() - _CLOCK_SKEW_S
    attempts, may_be_queued = 1, False
    result = _sbatch(commands, script)
    for pause_s in (*pauses_s, None):
        job_id = _job_id(result)
        if job_id is not None:
            return job_id if attempts == 1 else _only_one(commands, source, name, since, job_id)
        if not never_arrived(result.stderr):
            if not _is_unanswered(result):
                raise refusal(result, script)
            may_be_queued = True
        found = _look_up(source, name, since)
        if pause_s is not None and not found:
            sleep(pause_s)
            found = _look_up(source, name, since)
        if found:
            return the_job(found).job_id
        if pause_s is not None and (found is not None or not may_be_queued):
            attempts += 1
            result = _sbatch(commands, script)
    raise NoAnswerError(
        f"Slurm does not answer: {words_of(result.stderr) or result.problem or result.stdout!r}",
        file=str(script),
        rule="the controller takes the job, or says why not",
        hint="`scontrol ping` tells whether it is there; `infrarsi resume STUDY` looks for the job first",
    )


def cancel_job(commands: SlurmCommands, job_id: str, name: str) -> None:
    """Cancel a job by its id and its name at once: an id alone may belong to somebody else by now.

    A job that has ended, or has another name, is left alone.

    Raises:
        InfrastructureError: Slurm does not do it.
    """
    result = commands.run("scancel", "--name", name, job_id)
    if not result.ok and not re.search(r"already|invalid job id", result.stderr, re.IGNORECASE):
        raise InfrastructureError(
            f"the job cannot be cancelled: {result.complaint}",
            value=job_id,
            hint=f"`scancel {job_id}` once Slurm answers again",
        )


def test_only(commands: SlurmCommands, script: Path) -> TestOnly:
    """Ask Slurm whether it would take a script, and when it would start it; nothing is submitted."""
    result = commands.run("sbatch", "--test-only", str(script))
    text = result.stderr.strip() or result.stdout.strip() or result.problem or "no answer"
    if not result.ok:
        return TestOnly(ok=False, text=text, hint=_advice(result))
    match = _START.search(text)
    start = dt.datetime.fromisoformat(match.group(1)).timestamp() if match else None
    if start is not None and start - time.time() > _FARTHEST_START_S:
        start = None  # behind jobs without a time limit Slurm sees nothing but the year 2282
    return TestOnly(ok=True, text=text, start_estimate=start)


def refusal(result: CommandResult, script: Path) -> InfrastructureError | TaskFileError:
    """The error for a request that Slurm did not take, in Slurm's own words."""
    words = words_of(result.stderr) or result.problem or f"exit code {result.returncode}"
    if result.problem == "not found":
        return InfrastructureError(
            "sbatch is not on PATH", hint="load the site's Slurm module, or use --executor local"
        )
    hint = hint_for(result.stderr)
    message = f"Slurm refused the job: {words}"
    if hint.key is None:
        return InfrastructureError(message, file=str(script), hint=hint.advice)
    return TaskFileError(message, file=str(script), key=hint.key, hint=hint.advice)


def enclosing_job(environ: Mapping[str, str] | None = None) -> str | None:
    """The Slurm job that this process runs in, None outside of one."""
    values = os.environ if environ is None else environ
    return values.get("SLURM_JOB_ID") or values.get("SLURM_JOBID") or None


def _sbatch(commands: SlurmCommands, script: Path) -> CommandResult:
    return commands.run("sbatch", "--parsable", str(script))


def _job_id(result: CommandResult) -> str | None:
    if not result.ok:
        return None
    # Sites print words of their own around it; the id is a line by itself.
    match = _JOB_ID.search(result.stdout)
    return match.group(1) if match else None


def _is_unanswered(result: CommandResult) -> bool:
    """No answer, or an unreadable one, although something was reached."""
    if result.problem == "not found":
        return False
    return result.returncode is None or result.ok or may_have_arrived(result.stderr)


def the_job(found: Sequence[SchedulerFacts]) -> SchedulerFacts:
    """Of all jobs with one name the one that counts: the oldest that waits or runs, or else has run.

    A request that is refused may leave a job behind that never had a chance.
    """

    def rank(facts: SchedulerFacts) -> tuple[bool, bool, int]:
        return parse_state(facts.state).is_final, facts.started_at is None, int(facts.job_id)

    return min(found, key=rank)


def _look_up(source: StateSource, name: str, since: float) -> list[SchedulerFacts] | None:
    """Jobs of this name; None when nobody answers."""
    try:
        return source.find(name, since)
    except SchedulerUnavailable:
        return None


def _only_one(commands: SlurmCommands, source: StateSource, name: str, since: float, job_id: str) -> str:
    """Keep the oldest job of a name, where an earlier submission turned up late after all."""
    found = _look_up(source, name, since) or []
    live = [facts for facts in found if not parse_state(facts.state).is_final]
    if not live:
        return job_id
    keep = the_job(live).job_id
    for facts in live:
        if facts.job_id != keep:
            commands.run("scancel", "--name", name, facts.job_id)
    return keep


def _advice(result: CommandResult) -> str:
    if result.problem == "not found":
        return "load the site's Slurm module"
    if never_arrived(result.stderr) or result.returncode is None:
        return "`scontrol ping` shows whether the controller is there"
    return hint_for(result.stderr).advice
