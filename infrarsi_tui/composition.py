"""The composition root: which executor, which clock, which study."""

from __future__ import annotations

import contextlib
import datetime as dt
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InfraError, IntegrityError, TaskFileError, UsageError
from engine.journal.folder import StudyFolder
from engine.journal.session import Observer, StudySession
from engine.ports import JobExecutor
from engine.schema.study import StudyCreated, StudyOptions
from engine.schema.task import SlurmSection
from engine.stages.context import StudyContext
from engine.stages.initialization import lock_task, record_creation
from engine.task.load import Task, load_task
from engine.trial.file_tree import remove_tree
from engine.trial.runner import TrialRunner
from engine.trial.snapshot import Snapshot
from infrarsi_tui.clock import SystemClock
from infrarsi_tui.cluster import nested_note, refuse_without_slurm, slurm_executor
from infrarsi_tui.streams import narrate
from infrarsi_tui.version import product_version
from slurm.local.executor import LocalExecutor

STUDIES = "infrarsi-studies"
DEFAULT_TRIALS = 20


def make_executor(name: str, task: Task, folder: StudyFolder) -> JobExecutor:
    """The executor of a study."""
    if name == "local":
        return LocalExecutor()
    if name == "slurm":
        return slurm_executor(task, folder)
    raise UsageError(f"unknown executor {name}", key="--executor", value=name, rule="local or slurm")


@dataclass(frozen=True)
class Choices:
    """What the command line says about a study; None = the task file decides."""

    out: Path | None = None
    executor: str = "local"
    seed: int | None = None
    trials: int | None = None
    gpu_hours: float | None = None
    deadline: float | None = None
    advisor: str | None = None
    patches: str | None = None
    deploy: Path | None = None
    single_trial: bool = False
    on_event: str | None = None


def study_options(task: Task, choices: Choices) -> StudyOptions:
    """Command line over task file over defaults; without any limit the search has DEFAULT_TRIALS trials."""
    settings = task.settings
    trials = choices.trials or settings.budget.trials
    gpu_hours = choices.gpu_hours or settings.budget.gpu_hours
    limits = (trials, gpu_hours, choices.deadline, settings.budget.wall_clock_hours)
    if all(limit is None for limit in limits):
        trials = DEFAULT_TRIALS
    advisor = choices.advisor or settings.advisor.kind
    return StudyOptions.model_validate(
        {
            "executor": choices.executor,
            "seed": settings.measurement.seed if choices.seed is None else choices.seed,
            "trials": trials,
            "gpu_hours": gpu_hours,
            "deadline": choices.deadline,
            "advisor": "rules" if advisor == "claude" else advisor,
            "patches": "off",
            "deploy_to": str(choices.deploy.resolve()) if choices.deploy else None,
            "single_trial": choices.single_trial,
            "on_event": choices.on_event,
        }
    )


def unmet_wishes(task: Task, choices: Choices) -> list[str]:
    """What was asked for and will not be done, and what else to know before a study; a sentence each."""
    wishes = []
    if (choices.advisor or task.settings.advisor.kind) == "claude":
        wishes.append("no language model is asked in this version: the advisor `rules` takes its place")
    if (choices.patches or task.settings.advisor.patches) != "off":
        wishes.append("this version proposes no patches by itself; `infrarsi trial --patch` measures yours")
    if choices.executor == "local" and task.settings.slurm != SlurmSection():
        wishes.append("[slurm] is not used on this machine; `--executor slurm` runs trials as jobs")
    if choices.executor == "slurm":
        wishes += nested_note()
    return wishes


@contextlib.contextmanager
def new_study(task_path: Path, choices: Choices, observer: Observer | None) -> Iterator[StudyContext]:
    """A fresh study of a task, open for writing."""
    task = load_task(task_path)
    options = study_options(task, choices)
    for wish in unmet_wishes(task, choices):
        narrate(f"note: {wish}")
    _refuse_impossible(task, options.executor)
    folder = StudyFolder.create(choices.out or default_out(task))
    try:
        frozen, digest = lock_task(task, folder)
    except InfraError:
        remove_tree(folder.root)
        raise
    clock = SystemClock()
    with StudySession(folder, clock, observer) as session:
        record_creation(session, task, digest, options, product_version())
        executor = make_executor(options.executor, frozen, folder)
        yield StudyContext(session, frozen, executor, clock, TrialRunner(session, frozen, executor, clock))


@contextlib.contextmanager
def existing_study(
    root: Path, observer: Observer | None, *, runs_trials: bool = True
) -> Iterator[StudyContext]:
    """A study made earlier, open for writing.

    Raises:
        UsageError: there is no study, or it never got its first event.
        InfrastructureError: it is to run trials on Slurm, which is not here.
        StudyBusyError: another engine works on it.
    """
    folder = StudyFolder.open(root)
    clock = SystemClock()
    with StudySession(folder, clock, observer) as session:
        if session.state.created is None:
            raise UsageError(
                "the study was interrupted before it began",
                file=str(root),
                hint="remove the folder and run the task again",
            )
        _check_frozen(folder, session.state.created)
        task = load_task(folder.task_file)
        name = session.state.created.options.executor
        if name == "slurm" and runs_trials:
            refuse_without_slurm(task)
        executor = make_executor(name, task, folder)
        yield StudyContext(session, task, executor, clock, TrialRunner(session, task, executor, clock))


def _check_frozen(folder: StudyFolder, created: StudyCreated) -> None:
    """Task and snapshot must be those that the study began with.

    Raises:
        IntegrityError: one of them was changed.
    """
    task_sha256 = hashlib.sha256(folder.task_file.read_bytes()).hexdigest()
    snapshot = Snapshot.load(folder.snapshot)
    for path, found, expected in (
        (folder.task_file, task_sha256, created.task_sha256),
        (folder.snapshot, snapshot.digest, created.snapshot_sha256),
    ):
        if found != expected:
            raise IntegrityError(
                "changed since the study began: constraints and scope are locked",
                file=str(path),
                hint="restore it, or start a new study",
            )


def _refuse_impossible(task: Task, executor: str) -> None:
    """An allocation that the executor cannot give is a mistake of the task file, not of the machine.

    Raises:
        TaskFileError: more than one node, or srun, on this machine; an option of sbatch that is ours.
        InfrastructureError: there is no Slurm here.
    """
    if executor == "slurm":
        refuse_without_slurm(task)
    if executor != "local":
        return
    settings = task.settings
    for key, value, is_wrong in (
        ("allocation.nodes", settings.allocation.nodes, settings.allocation.nodes != 1),
        ("task.launcher", settings.task.launcher, settings.task.launcher == "srun"),
    ):
        if is_wrong:
            raise TaskFileError(
                "not possible on this machine alone",
                file=str(task.file),
                key=key,
                value=value,
                rule="--executor local: one node, launcher torchrun or command",
            )


def default_out(task: Task) -> Path:
    """The study folder that is made where --out names none."""
    stamp = dt.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    slug = "".join(char if char.isalnum() or char in "-_" else "-" for char in task.settings.task.name)
    return Path(STUDIES) / f"{slug}-{stamp}"
