"""Sudden death at every moment of a study, then resume: nothing is lost, nothing counted twice."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.session import StudySession
from engine.journal.state import StudyState
from engine.schema.base import Scalar
from engine.schema.study import Event, Stage, TrialFinished
from engine.schema.trial import OutcomeKind, TrialKind
from engine.search.models import FittedModels, fit_models
from engine.stages.search_input import search_input
from engine.study import run_study
from tests.study.simulated import Death
from tests.study.studies import Cluster, context, engine, searched
from tests.study.surface import task_text

TRIALS = 4


class MortalSession(StudySession):
    """A session whose process dies before, after or in the middle of its n-th record."""

    appends = 0
    dies_at = -1
    how = "after"

    def record(self, event: Event) -> None:
        """Record, or die."""
        number, MortalSession.appends = MortalSession.appends, MortalSession.appends + 1
        if number == self.dies_at and self.how == "before":
            raise Death
        super().record(event)
        if number == self.dies_at:
            if self.how == "torn":
                _tear(self.folder.journal)
            raise Death


def _tear(journal: Path) -> None:
    """Cut the last line of the newest segment in half."""
    segment = max(journal.glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])


@dataclass(frozen=True)
class Ending:
    """What must not depend on deaths."""

    searched: list[dict[str, Scalar]]
    verified: list[dict[str, Scalar]]
    finalists: list[dict[str, Scalar]]
    models: FittedModels


def _ending(cluster: Cluster, state: StudyState) -> Ending:
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        models = fit_models(search_input(study))
    verification = state.counted(TrialKind.VERIFICATION)
    return Ending(
        searched=[dict(trial.proposed.candidate.configuration) for trial in searched(state)],
        verified=[dict(trial.proposed.candidate.configuration) for trial in verification],
        finalists=[dict(verdict.candidate.configuration) for verdict in state.verdicts or ()],
        models=models,
    )


def _same(left: Ending, right: Ending) -> None:
    assert left.searched == right.searched
    assert left.verified == right.verified
    assert left.finalists == right.finalists
    np.testing.assert_array_equal(left.models.speed.eta, right.models.speed.eta)
    np.testing.assert_array_equal(left.models.speed.factor, right.models.speed.factor)
    assert (left.models.speed.a, left.models.speed.b) == (right.models.speed.a, right.models.speed.b)
    assert left.models.memory is not None
    assert right.models.memory is not None
    everything = np.eye(left.models.speed.eta.shape[0])
    np.testing.assert_array_equal(left.models.p_fits(everything), right.models.p_fits(everything))


def _run_mortal(cluster: Cluster, dies_at: int, how: str) -> bool:
    """One life of an engine; whether it died. Nothing of it is closed or released."""
    MortalSession.appends, MortalSession.dies_at, MortalSession.how = 0, dies_at, how
    try:
        session = MortalSession(StudyFolder.open(cluster.root), cluster.clock)
        run_study(context(session, cluster.executor, cluster.clock))
    except Death:
        return True
    return False


def _check(cluster: Cluster, state: StudyState, expected: Ending) -> None:
    assert state.stage is Stage.DONE
    assert not state.open_trials()
    ends = Counter(
        entry.data.trial_id
        for entry in read_entries(cluster.root / "journal")
        if isinstance(entry.data, TrialFinished)
    )
    assert set(ends) == set(state.trials)
    assert set(ends.values()) == {1}
    submitted = Counter(cluster.executor.submitted)
    assert set(submitted.values()) == {1}
    outcomes = {name: trial.outcome for name, trial in state.trials.items()}
    ran = {name for name, outcome in outcomes.items() if outcome and outcome.kind is not OutcomeKind.VOID}
    assert ran == set(submitted)
    _same(_ending(cluster, state), expected)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Ending, int]:
    """The study without a death, and its number of records."""
    cluster = Cluster(tmp_path_factory.mktemp("undisturbed"), task=task_text())
    cluster.start(trials=TRIALS)
    assert not _run_mortal(cluster, -1, "after")
    count = MortalSession.appends
    state = cluster.go()
    return _ending(cluster, state), count


@pytest.mark.parametrize("how", ["before", "after", "torn"])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.17, 0.25, 0.3, 0.45, 0.8, 0.97])
def test_death_at_a_record(tmp_path: Path, undisturbed: tuple[Ending, int], share: float, how: str) -> None:
    """Wherever the engine dies around a record, the resumed study is the undisturbed one."""
    expected, count = undisturbed
    cluster = Cluster(tmp_path)
    cluster.start(trials=TRIALS)
    assert _run_mortal(cluster, int(share * count), how)
    _check(cluster, cluster.go(), expected)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["before", "after", "torn"])
def test_death_at_every_record(tmp_path: Path, undisturbed: tuple[Ending, int], how: str) -> None:
    """The same at every single record of the study."""
    expected, count = undisturbed
    for number in range(count):
        folder = tmp_path / str(number)
        cluster = Cluster(folder)
        cluster.start(trials=TRIALS)
        assert _run_mortal(cluster, number, how), number
        _check(cluster, cluster.go(), expected)
        shutil.rmtree(folder)


@pytest.mark.parametrize("kind", ["b", "p", "t", "v"])
@pytest.mark.parametrize("call", ["submit", "submitted", "poll"])
def test_death_in_a_call_of_the_executor(
    tmp_path: Path, undisturbed: tuple[Ending, int], call: str, kind: str
) -> None:
    """Before a job is handed over, after that but before it is recorded, and while it is waited for."""
    expected, _ = undisturbed
    cluster = Cluster(tmp_path)
    died: list[str] = []

    def die(name: str, trial_id: str) -> None:
        if (name, trial_id[0]) == (call, kind) and not died:
            died.append(trial_id)
            raise Death

    cluster.executor.hook = die
    cluster.start(trials=TRIALS)
    assert _run_mortal(cluster, -1, "after")
    assert died
    _check(cluster, cluster.go(), expected)


def test_a_study_that_dies_again_and_again_ends(tmp_path: Path, undisturbed: tuple[Ending, int]) -> None:
    """An engine that lives for seven records at a time still finishes, with the same result."""
    expected, _ = undisturbed
    cluster = Cluster(tmp_path)
    cluster.start(trials=TRIALS)
    lives = 1
    while _run_mortal(cluster, 7, "after"):
        lives += 1
        assert lives < 60
    state = cluster.go()
    assert state.epochs > 5
    _check(cluster, state, expected)


@pytest.mark.parametrize("call", ["submit", "submitted"])
def test_hours_without_an_engine_are_not_charged(tmp_path: Path, call: str) -> None:
    """An engine that comes back a month later finds its budget as it was, up to the job's own time limit."""
    cluster = Cluster(tmp_path)
    cluster.executor.lost = lambda trial_id: trial_id == "t002"

    def die(name: str, trial_id: str) -> None:
        if (name, trial_id) == (call, "t002"):
            raise Death

    cluster.executor.hook = die
    cluster.start(trials=3)
    assert _run_mortal(cluster, -1, "after")
    cluster.executor.hook = lambda name, trial_id: None
    cluster.clock.sleep(30 * 86_400.0)
    state = cluster.go()
    lost = state.trials["t002"].outcome
    assert lost is not None
    assert lost.kind is OutcomeKind.VOID
    assert lost.gpu_hours < 2.0
    assert len(searched(state)) == 3
