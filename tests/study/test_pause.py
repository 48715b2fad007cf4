"""Failure after failure of one class pauses a study; what memory and known conflicts explain does not."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from engine.errors import ExitCode, InfrastructureError
from engine.journal.log import read_entries
from engine.journal.state import StudyState, TrialState
from engine.schema.study import Stage, StageEntered, TrialProposed
from engine.schema.trial import Attribution, Candidate, FailureKind, Outcome, OutcomeKind, TrialKind
from engine.search.exclusion import Cause, Exclusions
from engine.stages.hooks import Hooks, StudyEvent
from engine.stages.streak import STREAK, StudyPaused, crash_streak
from engine.study import run_study
from tests.study import wire
from tests.study.simulated import BYTES_PER_GIB
from tests.study.studies import Cluster, engine, read
from tests.study.surface import task_text

SLOTS = 3


def _crash_all(cluster: Cluster) -> None:
    """From now on every search trial raises the same exception."""
    cluster.executor.shapes = lambda trial_id, run: (
        dataclasses.replace(run, exception=wire.crash(BYTES_PER_GIB // 2)) if trial_id[0] in "tr" else run
    )


def _go(cluster: Cluster, events: list[StudyEvent]) -> StudyState:
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_study(dataclasses.replace(study, hooks=Hooks(happened=events.append)))
        return study.state


@pytest.mark.parametrize("slots", [1, SLOTS])
def test_five_failures_alike_pause_the_study(tmp_path: Path, slots: int) -> None:
    """Stopped, with the class, the trials and what to do; what ran beside them has its outcome."""
    cluster = Cluster(tmp_path, task=task_text(extra=f"[slurm]\nparallel_trials = {slots}"))
    _crash_all(cluster)
    cluster.start(trials=30)
    events: list[StudyEvent] = []
    with pytest.raises(StudyPaused):
        _go(cluster, events)
    state = read(cluster.root)
    assert (state.stage, state.interrupted_stage) == (Stage.STOPPED, Stage.SEARCH)
    assert state.note is not None
    assert "infrarsi resume" in state.note
    assert "corpus.bin" in state.note
    failed = [trial for trial in state.of_kind(TrialKind.SEARCH, TrialKind.RETEST) if trial.outcome]
    assert STREAK <= len(failed) < STREAK + slots
    assert all(trial.trial_id in state.note for trial in failed[:STREAK])
    assert not state.open_trials()
    assert not cluster.executor.cancelled
    assert events == [StudyEvent.PAUSED]
    last = [entry.data for entry in read_entries(cluster.root / "journal")][-1]
    assert isinstance(last, StageEntered)
    assert last.exit_code == ExitCode.INTERRUPTED


def test_the_streak_counts_anew_after_a_resume(tmp_path: Path) -> None:
    """A resumed study takes five further failures, and none once the cause is mended."""
    cluster = Cluster(tmp_path)
    _crash_all(cluster)
    cluster.start(trials=14)
    events: list[StudyEvent] = []
    for pauses in (1, 2):
        with pytest.raises(StudyPaused):
            _go(cluster, events)
        tried = read(cluster.root).of_kind(TrialKind.SEARCH, TrialKind.RETEST)
        assert len(tried) == pauses * STREAK
    cluster.executor.shapes = lambda trial_id, run: run
    assert _go(cluster, events).stage is Stage.DONE
    assert events == [StudyEvent.PAUSED, StudyEvent.PAUSED, StudyEvent.FINISHED]


def test_a_failed_study_is_an_event(tmp_path: Path) -> None:
    """Whoever waits hears of a failure, and the journal holds the exit code."""
    cluster = Cluster(tmp_path)
    cluster.executor.lost = lambda trial_id: trial_id[0] == "b"
    cluster.start(trials=4)
    events: list[StudyEvent] = []
    with pytest.raises(InfrastructureError):
        _go(cluster, events)
    assert events == [StudyEvent.FAILED]
    last = [entry.data for entry in read_entries(cluster.root / "journal")][-1]
    assert isinstance(last, StageEntered)
    assert (last.stage, last.exit_code) == (Stage.FAILED, ExitCode.INFRASTRUCTURE)


def test_a_surface_with_conflicts_and_a_memory_cliff_is_never_paused(tmp_path: Path) -> None:
    """The failures that a search is there to learn from do not stop it."""
    assert Cluster(tmp_path).run(trials=24).stage is Stage.DONE


def _ended(number: int, kind: OutcomeKind, failure: FailureKind | None, signature: str | None) -> TrialState:
    name = f"t{number:03d}"
    proposed = TrialProposed(
        trial_id=name,
        kind=TrialKind.SEARCH,
        origin="test",
        reason="test",
        candidate=Candidate(configuration={"micro_batch_size": number}),
        total_updates=5,
        measured_updates=3,
    )
    why = failure and Attribution(kind=failure, blame_candidate=True, cause="a cause", signature=signature)
    outcome = Outcome(kind=kind, attribution=why or None, wall_s=1.0, gpu_hours=0.0)
    return TrialState(proposed, float(number), outcome=outcome, finished_at=float(number))


CRASH = (OutcomeKind.FAILED, FailureKind.UNKNOWN, "a")
OTHER = (OutcomeKind.FAILED, FailureKind.UNKNOWN, "b")
MEMORY = (OutcomeKind.FAILED, FailureKind.OOM_GPU, "a")
VOID = (OutcomeKind.VOID, FailureKind.INFRA, "a")
STOPPED = (OutcomeKind.CANCELLED, None, None)
MEASURED = (OutcomeKind.COMPLETED, None, None)
REJECTED = (OutcomeKind.REJECTED, None, None)
Ending = tuple[OutcomeKind, FailureKind | None, str | None]


@pytest.mark.parametrize(
    ("endings", "is_streak"),
    [
        ([CRASH] * 5, True),
        ([CRASH] * 4, False),
        ([CRASH] * 4 + [OTHER], False),
        ([OTHER] + [CRASH] * 5, True),
        ([CRASH, CRASH, MEASURED, CRASH, CRASH, CRASH], False),
        ([CRASH, CRASH, REJECTED, CRASH, CRASH, CRASH], False),
        ([CRASH, CRASH, MEMORY, VOID, STOPPED, CRASH, CRASH, CRASH], True),
        ([MEMORY] * 9, False),
        ([VOID] * 9, False),
        ([CRASH] * 5 + [MEASURED], False),
    ],
)
def test_what_makes_a_streak(endings: Sequence[Ending], is_streak: bool) -> None:
    """Five in a row of one kind and signature; a measured run ends it, memory and voids are passed over."""
    trials = [_ended(number, *ending) for number, ending in enumerate(endings)]
    found = crash_streak(reversed(trials))
    assert (found is not None) == is_streak
    if found is not None:
        assert len(found) == 5


@pytest.mark.parametrize(("rows", "is_explained"), [([[1, 0], [1, 2]], True), ([[1, 0], [0, 2]], False)])
def test_one_conflict_must_explain_all(rows: list[list[int]], is_explained: bool) -> None:
    """Failures of one class are known when they share one excluded set, not when each holds another."""
    sets = (frozenset({(0, 1)}), frozenset({(1, 2)}))
    causes = tuple(Cause((), (each,), {each: 1.0}, each, frozenset()) for each in sets)
    assert Exclusions(causes).explains_all(np.array(rows, dtype=np.int16)) == is_explained
