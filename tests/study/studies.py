"""Make, run and read studies on the simulated cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.session import Observer, StudySession
from engine.journal.state import StudyState, TrialState, replay
from engine.ports import JobExecutor
from engine.schema.study import StudyCreated, StudyOptions, TrialProposed
from engine.schema.trial import OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.stages.initialization import lock_task
from engine.study import run_study
from engine.task.load import load_task
from engine.trial.runner import TrialRunner
from tests.study.simulated import SimulatedExecutor, VirtualClock
from tests.study.surface import Surface, write_project


def options(**changes: object) -> StudyOptions:
    """Options of a small study."""
    values: dict[str, object] = {
        "executor": "simulated",
        "seed": 3,
        "trials": 12,
        "gpu_hours": None,
        "advisor": "none",
        "patches": "off",
    }
    return StudyOptions.model_validate({**values, **changes})


def create(root: Path, project: Path, chosen: StudyOptions, clock: VirtualClock) -> StudyFolder:
    """Stage 1 with a known nonce: a study that nobody works on yet."""
    folder = StudyFolder.create(root)
    task, digest = lock_task(load_task(project), folder)
    created = StudyCreated(
        task_name=task.settings.task.name,
        task_sha256="0" * 64,
        snapshot_sha256=digest,
        project=str(project),
        nonce="5eed",
        options=chosen,
        product_version="0",
    )
    with StudySession(folder, clock) as session:
        session.record(created)
    return folder


def context(session: StudySession, executor: JobExecutor, clock: VirtualClock) -> StudyContext:
    """What the composition root builds."""
    task = load_task(session.folder.task_file)
    return StudyContext(session, task, executor, clock, TrialRunner(session, task, executor, clock))


@contextlib.contextmanager
def engine(
    root: Path, executor: JobExecutor, clock: VirtualClock, observer: Observer | None = None
) -> Iterator[StudyContext]:
    """An engine that works on a study."""
    with StudySession(StudyFolder.open(root), clock, observer) as session:
        yield context(session, executor, clock)


def propose(study: StudyContext, trial_id: str) -> TrialState:
    """Record a baseline trial that nobody runs yet."""
    proposed = TrialProposed(
        trial_id=trial_id,
        kind=TrialKind.BASELINE,
        origin="test",
        reason="test",
        candidate=study.baseline_candidate(),
        total_updates=7,
        measured_updates=5,
    )
    study.session.record(proposed)
    return study.state.trials[trial_id]


class Cluster:
    """A project, a surface, a clock and an executor, and studies on them."""

    def __init__(self, folder: Path, surface: Surface | None = None, task: str | None = None) -> None:
        self.folder = folder
        self.surface = surface or Surface()
        self.project = write_project(folder / "project", task)
        self.clock = VirtualClock()
        self.executor = SimulatedExecutor(self.surface, self.clock)

    @property
    def root(self) -> Path:
        """The study's folder."""
        return self.folder / "study"

    def start(self, **changes: object) -> None:
        """Make the study without running it."""
        create(self.root, self.project, options(**changes), self.clock)

    def go(self, observer: Observer | None = None) -> StudyState:
        """Run, or resume, the study to its end."""
        with engine(self.root, self.executor, self.clock, observer) as study:
            run_study(study)
            return study.state

    def run(self, **changes: object) -> StudyState:
        """A whole study."""
        self.start(**changes)
        return self.go()


def read(root: Path) -> StudyState:
    """The study as any reader sees it."""
    return replay(read_entries(root / "journal"))


def searched(state: StudyState) -> list[TrialState]:
    """Search trials that count."""
    return [
        trial
        for trial in state.of_kind(TrialKind.SEARCH)
        if trial.outcome is not None and trial.outcome.kind is not OutcomeKind.VOID
    ]
