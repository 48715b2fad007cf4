"""`submit`: the engine itself as a small Slurm job, for studies that outlive the terminal."""

from __future__ import annotations

import datetime as dt
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from engine.errors import ExitCode, InfrastructureError, StudyBusyError, UsageError
from engine.journal import lease
from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.state import replay
from engine.schema.study import Stage
from engine.task.load import Task, load_task
from infrarsi_tui.cli.choices import run_choices
from infrarsi_tui.composition import default_out, study_options
from infrarsi_tui.streams import emit_json, emit_text, narrate
from slurm.scheduler.capabilities import is_available
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.scheduler.submission import enclosing_job
from slurm.unattended.folder import EngineFolder
from slurm.unattended.records import EngineOrder
from slurm.unattended.start import EngineJob, EnginePlace, start_engine

_DISPLAY_OF_A_JOB = {"auto": "log", "tui": "log"}


def submit(arguments: Namespace) -> int:
    """Validate the task, then hand the engine to Slurm."""
    task = load_task(arguments.task)
    _refuse_elsewhere(arguments)
    study_options(task, run_choices(arguments))
    study = (arguments.out or default_out(task)).resolve()
    resumes = _existing(study, task)
    settings = task.settings.slurm
    commands = SlurmCommands()
    order = _order(arguments, study, settings.partition)
    place = EnginePlace(arguments.engine_partition, arguments.engine_time_min, arguments.inside)
    job = start_engine(
        order, task.settings, place, commands, StateSource(commands, min_poll_s=settings.min_poll_s)
    )
    enclosing = enclosing_job()
    if enclosing is not None:
        narrate(f"note: submitted from inside job {enclosing}; its variables do not reach the new job")
    value = _value(study, job, resumes)
    if arguments.json:
        emit_json(value)
    else:
        emit_text(_words(value))
    return ExitCode.DONE


def _refuse_elsewhere(arguments: Namespace) -> None:
    if arguments.executor != "slurm":
        raise UsageError(
            "an engine that runs as a Slurm job runs its trials through Slurm",
            key="--executor",
            value=arguments.executor,
            rule="slurm",
            hint="`infrarsi run` runs trials on this machine",
        )
    if not is_available():
        raise InfrastructureError(
            "this machine has no Slurm: sbatch and squeue are not on PATH",
            hint="load the site's Slurm module, or use `infrarsi run --executor local`",
        )


def _existing(study: Path, task: Task) -> bool:
    """Whether there is a study to go on with.

    Raises:
        UsageError: the folder is no study, or holds one that is at its end or of another task.
        StudyBusyError: an engine works on it.
    """
    if not study.exists():
        return False
    folder = StudyFolder.open(study)
    epoch = lease.latest_epoch(folder.journal)
    owner = None if epoch is None else lease.live_owner(folder.journal, epoch)
    if owner is not None:
        raise StudyBusyError(
            f"another engine works on this study: {owner}",
            file=str(study),
            hint="`infrarsi status` shows it, `infrarsi stop` ends it",
        )
    state = replay(read_entries(folder.journal))
    if state.created is not None and state.created.task_name != task.settings.task.name:
        raise UsageError(
            f"the folder holds a study of the task {state.created.task_name}",
            key="--out",
            value=str(study),
            hint="choose another name",
        )
    if state.stage is Stage.DONE or (state.created is not None and state.created.options.single_trial):
        what = "single trials" if state.stage is not Stage.DONE else "a study that is done"
        raise UsageError(
            f"the folder holds {what}", key="--out", value=str(study), hint="choose another name"
        )
    return True


def _order(arguments: Namespace, study: Path, partition: str | None) -> EngineOrder:
    display = _DISPLAY_OF_A_JOB.get(arguments.display, arguments.display)
    program = (sys.executable, "-P", "-m", "infrarsi_tui.main")
    common = ("--json", "--display", display)
    task = str(arguments.task.resolve())
    return EngineOrder(
        study=str(study),
        run=(*program, "run", task, "--out", str(study), *_run_words(arguments), *common),
        resume=(*program, "resume", str(study), *common),
        cwd=str(Path.cwd()),
        partition=partition,
        inside=arguments.inside,
    )


def _run_words(arguments: Namespace) -> list[str]:
    """The options of `run` as words again."""
    deadline = arguments.deadline
    values = {
        "--executor": arguments.executor,
        "--seed": arguments.seed,
        "--trials": arguments.trials,
        "--gpu-hours": arguments.gpu_hours,
        "--deadline": None if deadline is None else dt.datetime.fromtimestamp(deadline, dt.UTC).isoformat(),
        "--advisor": arguments.advisor,
        "--patches": arguments.patches,
        "--on-event": arguments.on_event,
        "--deploy": None if arguments.deploy is None else arguments.deploy.resolve(),
    }
    words = [f"{option}={value}" for option, value in values.items() if value is not None]
    return [*words, "--no-store"] if arguments.no_store else words


def _value(study: Path, job: EngineJob, resumes: bool) -> dict[str, Any]:
    return {
        "study_dir": str(study),
        "engine_dir": str(job.folder.root),
        "job_id": job.job_id,
        "job_name": job.name,
        "time_limit_min": job.time_min,
        "log": str(job.folder.log),
        "state": str(job.folder.state),
        "resumes": resumes,
    }


def _words(value: dict[str, Any]) -> str:
    study = value["study_dir"]
    begins = "goes on with" if value["resumes"] else "begins"
    return "\n".join(
        [
            f"job {value['job_id']} ({value['job_name']}) {begins} {study}",
            f"  log     {value['log']}",
            f"  watch   infrarsi attach {study}",
            f"          infrarsi status {study}",
            f"  end     infrarsi stop {study}",
            f"  engine  {EngineFolder.of(Path(study)).state} says where the job itself stands;",
            f"          scancel {value['job_id']} ends it, and its trials go on",
        ]
    )
