"""Submitting the engine job of a study, unless one is alive already."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.durable import explain_disk_errors, write_text
from engine.errors import InfrastructureError, StudyBusyError, UsageError
from engine.schema.job import SchedulerFacts
from engine.schema.task import SlurmSection, TaskFile
from slurm.held.requesting import allocation_request
from slurm.scheduler import fields
from slurm.scheduler.allocation import AllocationRequest, Options, sbatch_options, script_text
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from slurm.scheduler.states import parse_state
from slurm.unattended.folder import EngineFolder, job_name
from slurm.unattended.handover import submit_recorded
from slurm.unattended.records import EngineOrder, EngineState, Phase, Submission, read_record, write_record

WARNING_S = 120
"""The batch script hears of its time limit so long before (Slurm may send the signal a minute earlier)."""

DEFAULT_TIME_MIN = 24 * 60
SHORTEST_TIME_MIN = 4
CPUS = 2
MEMORY = "2G"

_UNFIT = re.compile(r"[\r\n]")


@dataclass(frozen=True)
class EnginePlace:
    """Where the engine job runs, and its time limit in minutes.

    `partition` None = that of the trials; `time_min` None = DEFAULT_TIME_MIN, or what the partition allows.
    `inside` = in the allocation that the trials run in, which has its own partition and limit.
    """

    partition: str | None = None
    time_min: int | None = None
    inside: bool = False


@dataclass(frozen=True)
class EngineJob:
    """An engine job that was submitted."""

    job_id: str
    name: str
    folder: EngineFolder
    time_min: int


def engine_settings(settings: SlurmSection, place: EnginePlace) -> SlurmSection:
    """[slurm] as far as it concerns a job without GPUs: account; partition and QOS unless it goes elsewhere.

    What describes GPU nodes (constraint, reservation, exclusive, memory, extra options) is left out.
    """
    is_elsewhere = place.partition is not None and place.partition != settings.partition
    return SlurmSection(
        partition=place.partition or settings.partition,
        account=settings.account,
        qos=None if is_elsewhere else settings.qos,
    )


def engine_request(
    folder: EngineFolder, task: TaskFile, place: EnginePlace, time_min: int, cwd: str, number: int
) -> AllocationRequest:
    """One node, one task, two CPUs, 2 GB, no GPU; with `inside`, what a held allocation asks for.

    In both cases it may be requeued, and its batch script hears of its time limit.
    """
    name, output = job_name(folder.study, number), str(folder.log).replace("%", "%%")
    if place.inside:
        request = allocation_request(task.slurm, task.allocation, name, folder.root, ())
        comment = "infrarsi: a study with its engine"
    else:
        settings = engine_settings(task.slurm, place)
        request = AllocationRequest(
            name=name,
            nodes=1,
            cpus_per_task=CPUS,
            mem=MEMORY,
            time_min=time_min,
            settings=settings,
            output=output,
        )
        comment = "infrarsi: the engine of a study; it submits the trials"
    return dataclasses.replace(
        request, output=output, requeue=True, signal=f"B:USR1@{WARNING_S}", chdir=cwd, comment=comment
    )


def engine_script(options: Options, folder: EngineFolder) -> str:
    """The batch script: it becomes the driver, so that signals to the script reach the driver."""
    words = [sys.executable, "-P", "-m", "slurm.unattended.driver", str(folder.root)]
    return script_text(options, [f"exec {shlex.join(words)}"])


def start_engine(
    order: EngineOrder,
    task: TaskFile,
    place: EnginePlace,
    commands: SlurmCommands,
    source: StateSource,
) -> EngineJob:
    """Write the engine's folder and submit its job.

    Raises:
        UsageError: the time limit is too short, or the path cannot be written into a script.
        StudyBusyError: an engine job of this study is alive.
        TaskFileError: Slurm refuses the job for something that [slurm] asks for.
        InfrastructureError: Slurm does not answer, or the disk refuses.
    """
    folder = EngineFolder.of(Path(order.study))
    _refuse_unfit(folder, place)
    refuse_second(folder, source)
    last = read_record(folder.submission, Submission)
    number = 1 if last is None else last.number + 1
    time_min = engine_time_min(task.slurm, place, commands)
    request = engine_request(folder, task, place, time_min, order.cwd, number)
    with explain_disk_errors(folder.root):
        folder.root.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_record(folder.order, order)
    write_text(folder.script, engine_script(sbatch_options(request), folder), mode=0o700)
    folder.state.unlink(missing_ok=True)
    job_id = submit_recorded(folder, commands, source, folder.script, number)
    return EngineJob(job_id, request.name, folder, time_min)


def living_engine(folder: EngineFolder, source: StateSource) -> SchedulerFacts | None:
    """The engine job of a study as Slurm knows it, None when none waits or runs.

    Raises:
        InfrastructureError: there may be one, and Slurm does not answer.
    """
    submission = read_record(folder.submission, Submission)
    if submission is None:
        return None
    try:
        found = source.find(submission.name, submission.intended_at - 120.0)
    except SchedulerUnavailable as error:
        raise InfrastructureError(
            f"Slurm does not say whether the engine job {submission.name} is alive: {error}",
            file=str(folder.root),
            hint="`scontrol ping` shows whether the controller is there; try again when it is",
        ) from error
    alive = [facts for facts in found if not parse_state(facts.state).is_final]
    return alive[0] if alive else None


def refuse_second(folder: EngineFolder, source: StateSource) -> None:
    """One engine a study.

    Raises:
        StudyBusyError: an engine job of this study is alive.
        InfrastructureError: Slurm does not say.
    """
    alive = living_engine(folder, source)
    if alive is None:
        return
    state = read_record(folder.state, EngineState)
    words = f" ({state.words})" if state and state.phase is not Phase.ENDED else ""
    raise StudyBusyError(
        f"the engine of this study is job {alive.job_id}, {alive.state.lower()}{words}",
        file=str(folder.study),
        hint=f"`infrarsi status {folder.study}` shows where it stands; "
        f"`infrarsi stop {folder.study}` ends the study, `scancel {alive.job_id}` the engine alone",
    )


def engine_time_min(settings: SlurmSection, place: EnginePlace, commands: SlurmCommands) -> int:
    """The time limit of the engine job, minutes: as asked for, or a day, or what the partition allows."""
    if place.inside:
        return settings.time_limit_min
    if place.time_min is not None:
        return place.time_min
    partition = place.partition or settings.partition
    words = ["sinfo", "-h", "-o", "%P|%l"] + ([] if partition is None else ["-p", partition])
    result = commands.run(*words)
    for line in result.stdout.splitlines() if result.ok else ():
        name, _, limit = line.strip().partition("|")
        if partition is not None or name.endswith("*"):
            limit_s = fields.seconds(limit)
            return DEFAULT_TIME_MIN if limit_s is None else max(1, min(DEFAULT_TIME_MIN, int(limit_s // 60)))
    return DEFAULT_TIME_MIN


def _refuse_unfit(folder: EngineFolder, place: EnginePlace) -> None:
    if _UNFIT.search(str(folder.root)):
        raise UsageError("the path holds a line break", key="--out", value=str(folder.study))
    if place.inside and (place.partition is not None or place.time_min is not None):
        raise UsageError(
            "with --inside the engine has no job of its own",
            key="--engine-partition, --engine-time-min",
            rule="slurm.partition and slurm.time_limit_min say where the allocation is and how long it lasts",
        )
    if place.time_min is not None and place.time_min < SHORTEST_TIME_MIN:
        raise UsageError(
            "too short for an engine job: it is told of its limit two to three minutes before",
            key="--engine-time-min",
            value=place.time_min,
            rule=f"at least {SHORTEST_TIME_MIN}",
        )
