"""What an interrupt, a defect, a foreign engine or a foreign hand leave behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import StudyBusyError
from engine.journal.log import read_entries
from engine.journal.state import StudyState
from engine.schema.study import Entry, Stage, StageEntered, TrialFinished, TrialProposed, TrialSubmitted
from engine.schema.trial import FailureKind, OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.stages.search_input import observations
from engine.study import run_study
from engine.task.load import load_task
from engine.trial.plan import prepare_trial
from tests.journal.disk import no_room
from tests.study.simulated import Death
from tests.study.studies import Cluster, engine, read, searched


@pytest.mark.parametrize("moment", ["submit", "submitted", "recorded"])
def test_an_interrupt_around_a_submission_leaves_no_job(tmp_path: Path, moment: str) -> None:
    """Ctrl-C before, during or right after the submission: the job is ended, the trial is cancelled."""
    cluster = Cluster(tmp_path)

    def interrupt(call: str, trial_id: str) -> None:
        if (call, trial_id) == (moment, "t001"):
            cluster.executor.hook = lambda call, trial_id: None
            raise KeyboardInterrupt

    def interrupt_record(entry: Entry, _: StudyState) -> None:
        if isinstance(entry.data, TrialSubmitted):
            interrupt("recorded", entry.data.trial_id)

    cluster.executor.hook = interrupt
    cluster.start(trials=2)
    with pytest.raises(KeyboardInterrupt):
        cluster.go(interrupt_record)
    state = read(cluster.root)
    assert (state.stage, state.note) == (Stage.STOPPED, "interrupted")
    outcome = state.trials["t001"].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    assert cluster.executor.cancelled == ([] if moment == "submit" else ["t001"])
    assert cluster.go().stage is Stage.DONE


def test_a_claimed_folder_is_never_removed(tmp_path: Path) -> None:
    """A trial that another engine submitted is left as it is; the study is that engine's."""
    cluster = Cluster(tmp_path)
    mark = cluster.root / "trials" / "t001" / "claim" / "mark"

    def claim(entry: Entry, _: StudyState) -> None:
        if isinstance(entry.data, TrialProposed) and entry.data.trial_id == "t001":
            mark.parent.mkdir(parents=True)
            mark.touch()

    cluster.start(trials=2)
    with pytest.raises(StudyBusyError):
        cluster.go(claim)
    assert mark.exists()
    assert "t001" not in cluster.executor.submitted
    assert read(cluster.root).stage is Stage.SEARCH


def test_a_trial_is_claimed_once(tmp_path: Path) -> None:
    """Of two engines that prepared a trial the second is told that the study is busy."""
    cluster = Cluster(tmp_path)
    cluster.start()
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        trial = study.propose(TrialKind.BASELINE, study.baseline_candidate(), origin="test", reason="test")
        prepare_trial(study.task, study.session.folder, trial, "5eed", None)
        study.runner._claim(trial)
        with pytest.raises(StudyBusyError):
            study.runner._claim(trial)


def test_a_job_that_somebody_else_ended_is_run_again(tmp_path: Path) -> None:
    """`cancelled` without a request of ours is infrastructure: void, told so, repeated."""
    cluster = Cluster(tmp_path)
    cluster.executor.endings = lambda trial_id: "cancelled" if trial_id in ("b002", "t002") else "exited"
    state = cluster.run(trials=3)
    assert state.stage is Stage.DONE
    outcome = state.trials["t002"].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.VOID
    assert outcome.attribution is not None
    assert outcome.attribution.kind is FailureKind.INFRA
    assert "from outside" in outcome.attribution.cause
    assert outcome.gpu_hours > 0.0
    assert state.trials["b003"].proposed.retry_of == "b002"
    assert state.trials["t003"].proposed.retry_of == "t002"
    assert len(searched(state)) == 3


@pytest.mark.parametrize("hangs", [("b001", "t001"), ("b001", "t001", "t002")])
def test_a_hang_counts_only_if_it_comes_again(tmp_path: Path, hangs: tuple[str, ...]) -> None:
    """A failure with open blame is repeated once, and only the repetition counts, whatever it gives."""
    cluster = Cluster(tmp_path)
    cluster.executor.endings = lambda trial_id: "update_timeout" if trial_id in hangs else "exited"
    state = cluster.run(trials=3)
    assert state.stage is Stage.DONE
    assert {
        trial.trial_id
        for trial in state.trials.values()
        if trial.outcome
        and trial.outcome.attribution
        and trial.outcome.attribution.kind is FailureKind.HANG
        and trial.outcome.kind is OutcomeKind.FAILED
    } == set(hangs)
    assert state.trials["b002"].proposed.retry_of == "b001"
    assert state.trials["t002"].proposed.retry_of == "t001"
    assert state.trials["t002"].proposed.candidate == state.trials["t001"].proposed.candidate
    assert state.trials["t003"].proposed.retry_of is None
    shown = {each.trial_id for each in observations(state, load_task(cluster.project).settings)}
    assert not shown & {"b001", "t001"}
    assert "t002" in shown
    assert len(searched(state)) == 4
    assert len(state.counted(TrialKind.SEARCH)) == 3


def test_a_repetition_is_not_forgotten_over_a_death(tmp_path: Path) -> None:
    """An engine that dies right after an open failure leaves its repetition to the next one."""
    cluster = Cluster(tmp_path)
    cluster.executor.endings = lambda trial_id: "update_timeout" if trial_id == "t001" else "exited"

    def die(entry: Entry, _state: StudyState) -> None:
        if isinstance(entry.data, TrialFinished) and entry.data.trial_id == "t001":
            raise Death

    cluster.start(trials=2)
    with pytest.raises(Death):
        cluster.go(die)
    state = cluster.go()
    assert state.stage is Stage.DONE
    assert state.trials["t002"].proposed.retry_of == "t001"
    assert state.trials["t002"].proposed.candidate == state.trials["t001"].proposed.candidate
    assert len(state.counted(TrialKind.SEARCH)) == 2


def test_a_failure_with_a_culprit_counts_at_once(tmp_path: Path) -> None:
    """Where the candidate is to blame, nothing is repeated."""
    state = Cluster(tmp_path).run(trials=12)
    blamed = [
        name
        for name, trial in state.trials.items()
        if trial.outcome and trial.outcome.attribution and trial.outcome.attribution.blame_candidate
    ]
    assert blamed
    assert not {trial.proposed.retry_of for trial in state.trials.values()} & set(blamed)


def test_a_defect_leaves_a_failed_study(tmp_path: Path) -> None:
    """An exception that is no error of ours is recorded with its type, and resume goes on."""
    cluster = Cluster(tmp_path)

    def break_down(call: str, trial_id: str) -> None:
        if (call, trial_id) == ("poll", "t001"):
            raise ZeroDivisionError("a defect")

    cluster.executor.hook = break_down
    cluster.start(trials=2)
    with pytest.raises(ZeroDivisionError):
        cluster.go()
    state = read(cluster.root)
    assert (state.stage, state.interrupted_stage) == (Stage.FAILED, Stage.SEARCH)
    assert state.note == "ZeroDivisionError('a defect')"
    cluster.executor.hook = lambda call, trial_id: None
    assert cluster.go().stage is Stage.DONE


@pytest.mark.parametrize("end", [KeyboardInterrupt(), ZeroDivisionError("a defect")], ids=repr)
def test_a_full_disk_does_not_hide_why_a_study_ended(tmp_path: Path, end: BaseException) -> None:
    """Where the last record does not fit, what ended the study still reaches the caller."""
    cluster = Cluster(tmp_path)
    cluster.start()

    def fail(study: StudyContext) -> None:
        raise end

    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        with no_room(), pytest.raises(type(end)):
            run_study(study, (fail,))
        journal = study.session.folder.journal
    assert not [entry for entry in read_entries(journal) if isinstance(entry.data, StageEntered)]
