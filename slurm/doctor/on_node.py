"""The same checks on a compute node, by one short job that asks for one CPU and nothing else."""

from __future__ import annotations

import json
import shlex
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path

from engine.errors import InfraError
from engine.schema.job import SchedulerFacts
from engine.schema.task import SlurmSection
from slurm.doctor import peer
from slurm.doctor.check import Check, check_of
from slurm.doctor.node_report import ROUNDS
from slurm.doctor.storage import delay_check, existing_part, scratch
from slurm.scheduler.allocation import AllocationRequest, sbatch_options, script_text
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.reasons import sentence
from slurm.scheduler.source import StateSource
from slurm.scheduler.states import parse_state
from slurm.scheduler.submission import cancel_job, submit

GROUP = "node"
WAIT_S = 300.0
LATE_S = 90.0
"""A job that Slurm calls ended may have left a report that this machine does not see yet."""

_DELAY_S = 60.0
_POLL_S = 0.2
_MINUTES = 5


def node_checks(
    commands: SlurmCommands,
    folder: Path,
    partition: str | None,
    *,
    internet: bool,
    wait_s: float = WAIT_S,
    late_s: float = LATE_S,
    tell: Callable[[str], None] = lambda _words: None,
) -> list[Check]:
    """Submit the job, wait for its report, measure how late changes are seen; the job is gone afterwards.

    Args:
        commands: Slurm's commands.
        folder: Where studies will lie.
        partition: Where the job goes; None = the default one.
        internet: Whether the node shall try to reach the internet.
        wait_s: Seconds that the job may wait and run.
        late_s: Seconds that a report may come late after the job's end.
        tell: Gets a line now and then.
    """
    try:
        with scratch(existing_part(folder)) as work:
            work.chmod(0o700)
            return _in(work, commands, folder, partition, internet, (wait_s, late_s), tell)
    except InfraError as error:
        return [_failed(error.statement, error.hint or "")]
    except OSError as error:
        return [_failed(f"{folder}: {error.strerror}", "choose another --study-dir")]


def _in(
    work: Path,
    commands: SlurmCommands,
    folder: Path,
    partition: str | None,
    internet: bool,
    limits_s: tuple[float, float],
    tell: Callable[[str], None],
) -> list[Check]:
    name = f"infrarsi-doctor-{uuid.uuid4().hex[:12]}"
    script = work / "node.sh"
    script.write_text(_script(work, folder, name, partition, internet))
    source = StateSource(commands, min_poll_s=5.0)
    job_id = submit(commands, source, script, name)
    tell(f"job {job_id} looks at a node")
    source.watch(job_id, name=name)
    try:
        checks = _wait(work, source, job_id, limits_s)
    finally:
        cancel_job(commands, job_id, name)
    return checks


def _script(work: Path, folder: Path, name: str, partition: str | None, internet: bool) -> str:
    request = AllocationRequest(
        name=name,
        nodes=1,
        cpus_per_task=1,
        mem="500M",
        time_min=_MINUTES,
        settings=SlurmSection(partition=partition),
        output=str(work / "job.log").replace("%", "%%"),
        chdir=str(work),
    )
    words = [sys.executable, "-P", "-m", "slurm.doctor.node_report", str(existing_part(folder))]
    words += [str(work / "report.json"), "--answer", str(work)]
    return script_text(sbatch_options(request), [shlex.join([*words, *(["--internet"] if internet else [])])])


def _wait(work: Path, source: StateSource, job_id: str, limits_s: tuple[float, float]) -> list[Check]:
    wait_s, late_s = limits_s
    deadline = time.monotonic() + wait_s
    ended_at: float | None = None
    facts: SchedulerFacts | None = None
    while time.monotonic() < deadline:
        report = _read(work / "report.json")
        if report is not None:
            return _told(work, report)
        reading = source.reading(job_id)
        facts = reading.facts or facts
        gone = reading.presence == "absent" or (facts is not None and parse_state(facts.state).is_final)
        if gone and ended_at is None:
            ended_at = time.monotonic()
        if ended_at is not None and time.monotonic() - ended_at > late_s:
            return [_without_report(work, job_id, facts)]
        time.sleep(_POLL_S)
    return [_still_waiting(job_id, facts, wait_s)]


def _told(work: Path, report: dict[str, object]) -> list[Check]:
    node = str(report.get("node", "?"))
    listed = report.get("checks")
    values = listed if isinstance(listed, list) else []
    taken = peer.round_trips(work, ROUNDS, _DELAY_S)
    delay = delay_check(taken, f"node {node}").on(node)
    checks = [check_of(value).on(node) for value in values if isinstance(value, dict)]
    return [*(check for check in checks if check.name != delay.name), delay]


def _read(path: Path) -> dict[str, object] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None


def _without_report(work: Path, job_id: str, facts: SchedulerFacts | None) -> Check:
    try:
        words = (work / "job.log").read_text(errors="replace").strip()[-500:]
    except OSError:
        words = ""
    state = facts.state if facts else "gone"
    return _failed(
        f"job {job_id} ended ({state}) without a report" + (f": {words}" if words else ""),
        "the node may see neither this folder nor this Python: put both on a disk that all nodes share",
    )


def _still_waiting(job_id: str, facts: SchedulerFacts | None, wait_s: float) -> Check:
    why = "Slurm says nothing about it"
    if facts is not None:
        why = sentence(facts.state, facts.reason, None)
    found = f"job {job_id} gave no report within {wait_s:.0f} s and was cancelled: {why}"
    return Check("node/job", GROUP, "warn", found, "nothing is known about the nodes", "try again later")


def _failed(found: str, hint: str) -> Check:
    return Check("node/job", GROUP, "fail", found, "jobs may not run from this folder", hint)
