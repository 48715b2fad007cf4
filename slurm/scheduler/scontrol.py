"""scontrol show job: one job that squeue does not list any more."""

from __future__ import annotations

import re

from engine.schema.job import SchedulerFacts
from slurm.scheduler import fields
from slurm.scheduler.command import CommandResult
from slurm.scheduler.records import Sighting
from slurm.scheduler.states import parse_state

# Values may hold spaces and equal signs, so the text is cut at the keys that Slurm prints, not at blanks.
_KEY = re.compile(
    r"(?:^|\s)(JobId|ArrayJobId|ArrayTaskId|JobName|UserId|GroupId|MCS_label|Priority|Nice|Account|QOS|WCKey|JobState|Reason"
    r"|FailedNode|Dependency|Requeue|Restarts|BatchFlag|Reboot|ExitCode|DerivedExitCode|RunTime|TimeLimit|TimeMin"
    r"|SubmitTime|EligibleTime|AccrueTime|StartTime|EndTime|Deadline|PreemptEligibleTime|PreemptTime|SuspendTime"
    r"|SecsPreSuspend|LastSchedEval|Scheduler|Partition|AllocNode:Sid|ReqNodeList|ExcNodeList|NodeList|BatchHost"
    r"|NumNodes|NumCPUs|Command|WorkDir|StdErr|StdIn|StdOut|Comment|AdminComment|SystemComment)="
)
_UNKNOWN = ("invalid job id", "invalid job array", "job not found")


def job_argv(job_id: str) -> tuple[str, ...]:
    """The call for one job, on one line, hidden partitions too."""
    return ("scontrol", "-a", "-o", "show", "job", job_id)


def says_unknown(result: CommandResult) -> bool:
    """Whether the controller answered that it has no such job, which is an answer and no failure."""
    said = f"{result.stderr}\n{result.stdout}".lower()
    return result.returncode is not None and any(words in said for words in _UNKNOWN)


def parse_job(text: str, as_of: float) -> list[Sighting]:
    """Read one line a job; keys that are not known here are part of the value before them and do no harm."""
    sightings = []
    for line in text.split("\n"):
        said = _keys_of(line)
        if "JobId" in said and "JobState" in said:
            sightings.append(_sighting_of(said, as_of))
    return sightings


def _keys_of(line: str) -> dict[str, str]:
    found = list(_KEY.finditer(line))
    said: dict[str, str] = {}
    ends = [*(match.start() for match in found[1:]), len(line)]
    for match, end in zip(found, ends, strict=False):
        value = line[match.end() : end]
        said.setdefault(match.group(1), value.strip())
    return said


def _sighting_of(said: dict[str, str], as_of: float) -> Sighting:
    state = parse_state(said["JobState"])
    code, signal = fields.exit_of(said.get("ExitCode"))
    start = fields.unix_time(said.get("StartTime"))
    waits = state.phase == "waiting"
    facts = SchedulerFacts(
        job_id=_job_id_of(said),
        state=said["JobState"],
        reason=fields.text_of(said.get("Reason")),
        exit_code=code if state.is_final else None,
        signal=signal if state.is_final else None,
        nodes=fields.nodes_of(said.get("NodeList")),
        restarts=fields.count(said.get("Restarts")),
        name=fields.text_of(said.get("JobName")),
        submitted_at=fields.unix_time(said.get("SubmitTime")),
        started_at=None if waits else start,
        ended_at=fields.unix_time(said.get("EndTime")) if state.is_final else None,
        time_limit_s=fields.seconds(said.get("TimeLimit")),
        source="scontrol",
        as_of=as_of,
    )
    return Sighting(
        facts,
        start_estimate=start if waits else None,
        was_suspended=state.suspended or fields.text_of(said.get("SuspendTime")) is not None,
    )


def _job_id_of(said: dict[str, str]) -> str:
    if "ArrayJobId" in said and said.get("ArrayTaskId", "").isdecimal():
        return f"{said['ArrayJobId']}_{said['ArrayTaskId']}"
    return said["JobId"].split()[0] if said["JobId"] else ""
