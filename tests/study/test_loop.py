"""The whole loop on a simulated cluster whose truth is known."""

from __future__ import annotations

import json
import math
import socket
from pathlib import Path

import pytest

from engine.errors import BaselineError, InfrastructureError, StudyBusyError
from engine.journal import lease
from engine.journal.requests import post_request
from engine.journal.session import StopRequested
from engine.journal.state import TrialState
from engine.journal.summary import gpu_hours, summarise, verified_verdict
from engine.schema.base import Scalar
from engine.schema.study import Stage, TrialFinished
from engine.schema.trial import FailureKind, OutcomeKind, TrialKind
from engine.search.acquisition import EXPLORING_FLOOR
from engine.search.models import fit_models
from engine.stages.search_input import observations, search_input
from engine.task.load import load_task
from tests.study.studies import Cluster, engine, read, searched
from tests.study.surface import LIMIT_GIB, Surface, task_text


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path


def test_finds_the_optimum_and_verifies_it(folder: Path) -> None:
    """The verified winner is close to the best deployable one, and the interval covers its truth."""
    cluster = Cluster(folder)
    state = cluster.run(trials=16)
    verdict = verified_verdict(state)
    assert verdict is not None
    truth = math.exp(cluster.surface.log_speedup(verdict.candidate.configuration))
    assert truth >= 0.95 * cluster.surface.optimum()
    assert cluster.surface.deployable(verdict.candidate.configuration)
    assert verdict.speedup_ci is not None
    assert verdict.speedup_ci[0] <= truth <= verdict.speedup_ci[1]
    assert state.stage is Stage.DONE


def test_no_improvement_is_reported_as_none(folder: Path) -> None:
    """Where nothing is better than the unchanged job, nothing is verified, whatever the noise suggests."""
    cluster = Cluster(folder, Surface(gain=-0.5))
    state = cluster.run(trials=8)
    assert verified_verdict(state) is None
    assert state.stage is Stage.DONE
    assert "No verified improvement" in (cluster.root / "report.md").read_text()


def test_pure_noise_is_never_verified(folder: Path) -> None:
    """With equal arms and strong noise the luckiest arm stays unproven."""
    cluster = Cluster(folder, Surface(gain=0.0, noise_sd=0.02))
    assert verified_verdict(cluster.run(trials=10)) is None


def test_trials_budget_counts_search_trials_only(folder: Path) -> None:
    """--trials N is N search trials: baselines, retests, repeats and verification come on top."""
    cluster = Cluster(folder)
    state = cluster.run(trials=7)
    assert len(searched(state)) == 7
    assert len(state.of_kind(TrialKind.BASELINE)) >= 3
    assert state.of_kind(TrialKind.VERIFICATION)


def test_gpu_hours_budget_keeps_the_share_of_verification(folder: Path) -> None:
    """The search ends when the rest is what verification was promised."""
    cluster = Cluster(folder)
    state = cluster.run(trials=None, gpu_hours=0.1)
    spent = gpu_hours(state)
    before = spent["total"] - spent["verification"]
    dearest = max(trial.outcome.gpu_hours for trial in searched(state) if trial.outcome)
    assert 0.075 <= before <= 0.075 + dearest
    assert state.search_ended is not None
    assert "for verification" in state.search_ended


def test_out_of_memory_is_a_lower_bound_and_is_respected(folder: Path) -> None:
    """A refused allocation reaches the models as a bound above the limit, and is no conflict."""
    cluster = Cluster(folder)
    state = cluster.run(trials=16)
    failed = [
        trial
        for trial in searched(state)
        if trial.outcome
        and trial.outcome.attribution
        and trial.outcome.attribution.kind is FailureKind.OOM_HOST
    ]
    assert failed
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        seen = {each.trial_id: each for each in observations(study.state, study.task.settings)}
        models = fit_models(search_input(study))
    for trial in failed:
        observed = seen[trial.trial_id]
        assert observed.out_of_memory
        assert observed.memory_bound_gib is not None
        assert observed.memory_bound_gib >= LIMIT_GIB
        features = models.encoder.encode(models.lattice.rows([trial.proposed.candidate]))
        assert models.p_fits(features)[0] < EXPLORING_FLOOR
    for trial in searched(state):
        predicted = trial.proposed.predicted
        assert predicted is None or predicted.p_fits is None or predicted.p_fits >= EXPLORING_FLOOR
    sizes = {(each["micro_batch_size"], each["activation_recompute"]) for each in map(_settings, failed)}
    assert len(failed) <= len(sizes) + 2


def _settings(trial: TrialState) -> dict[str, Scalar]:
    return trial.proposed.candidate.configuration


def test_conflict_is_excluded_once_it_is_confirmed(folder: Path) -> None:
    """No candidate holds a confirmed conflict; only the minimal pair is excluded, not all changes."""
    cluster = Cluster(folder)
    state = cluster.run(trials=24)
    conflicts = [
        trial
        for trial in state.of_kind(TrialKind.SEARCH, TrialKind.RETEST)
        if trial.outcome
        and trial.outcome.attribution
        and trial.outcome.attribution.kind is FailureKind.CONFIG_CONFLICT
    ]
    assert len(conflicts) <= 4
    measured = [
        trial.proposed.candidate.configuration
        for trial in state.of_kind(TrialKind.SEARCH, TrialKind.RETEST)
        if trial.outcome and trial.outcome.kind is OutcomeKind.COMPLETED
    ]
    assert any(each["attention_backend"] == "flex" for each in measured)
    assert any(each["dataloader_workers"] == 2 for each in measured)


@pytest.mark.parametrize("kind", ["cheats", "drifts"])
def test_a_cheating_candidate_is_rejected_and_never_wins(folder: Path, kind: str) -> None:
    """A value that is twice as fast by training something else is rejected whenever it is run."""
    mark = ("attention_backend", "sdpa")
    surface = Surface(cheats=mark) if kind == "cheats" else Surface(drifts=mark)
    cluster = Cluster(folder, surface)
    state = cluster.run(trials=12)
    tried = [trial for trial in searched(state) if surface.is_wrong(trial.proposed.candidate.configuration)]
    trained = [trial for trial in tried if surface.fate(trial.proposed.candidate.configuration) == "trains"]
    assert trained
    for trial in trained:
        assert trial.outcome is not None
        assert trial.outcome.kind is OutcomeKind.REJECTED
        failed = {each.name for each in trial.outcome.invariants if each.status == "failed"}
        assert ("tokens_per_update" if kind == "cheats" else "loss_trajectory") in failed
    verdict = verified_verdict(state)
    assert verdict is not None
    assert not surface.is_wrong(verdict.candidate.configuration)


def test_a_void_trial_is_run_again_and_shown_to_no_model(folder: Path) -> None:
    """A lost job is repeated under another name; models, budget and later proposals do not notice it."""
    undisturbed = Cluster(folder / "undisturbed")
    expected = undisturbed.run(trials=5)
    cluster = Cluster(folder / "disturbed")
    cluster.executor.lost = lambda trial_id: trial_id in ("b002", "t002")
    state = cluster.run(trials=5)
    assert state.trials["t002"].outcome is not None
    assert state.trials["t002"].outcome.kind is OutcomeKind.VOID
    assert state.trials["t003"].proposed.retry_of == "t002"
    assert state.trials["t003"].proposed.candidate == state.trials["t002"].proposed.candidate
    shown = {each.trial_id for each in observations(state, load_task(cluster.project).settings)}
    assert not shown & {"b002", "t002"}
    assert len(searched(state)) == len(searched(expected)) == 5


def test_three_voids_in_a_row_end_the_study_and_resume_continues(folder: Path) -> None:
    """The error names the trial; the study stays readable and goes on when the cluster is well again."""
    cluster = Cluster(folder)
    cluster.executor.lost = lambda trial_id: trial_id in ("t002", "t003", "t004")
    cluster.start(trials=4)
    with pytest.raises(InfrastructureError, match="t004"):
        cluster.go()
    state = read(cluster.root)
    assert state.stage is Stage.FAILED
    assert state.interrupted_stage is Stage.SEARCH
    assert summarise(state, "study")["state"] == "failed"
    lost = state.trials["t004"].proposed.candidate
    resumed = cluster.go()
    assert resumed.stage is Stage.DONE
    assert len(searched(resumed)) == 4
    assert resumed.trials["t005"].proposed.candidate == lost


def test_a_scheduler_that_refuses_ends_the_study_and_resume_continues(folder: Path) -> None:
    """An executor's error loses no trial: the refused one is void, its candidate is run later."""
    cluster = Cluster(folder)
    cluster.executor.refuses = lambda trial_id: trial_id == "t003"
    cluster.start(trials=5)
    with pytest.raises(InfrastructureError, match="does not answer"):
        cluster.go()
    assert read(cluster.root).stage is Stage.FAILED
    state = cluster.go()
    assert state.stage is Stage.DONE
    assert not state.open_trials()
    assert state.trials["t003"].outcome is not None
    assert state.trials["t003"].outcome.kind is OutcomeKind.VOID
    assert state.trials["t004"].proposed.candidate == state.trials["t003"].proposed.candidate
    assert len(searched(state)) == 5


def test_a_stop_request_cancels_the_trial_and_resume_continues(folder: Path) -> None:
    """Stopped is a state; the running trial is cancelled once, and does not count against the budget."""
    cluster = Cluster(folder)

    def stop(call: str, trial_id: str) -> None:
        if call == "submitted" and trial_id == "t002":
            post_request(cluster.root / "requests", "stop", "enough for today")

    cluster.executor.hook = stop
    cluster.start(trials=4)
    with pytest.raises(StopRequested):
        cluster.go()
    state = read(cluster.root)
    assert (state.stage, state.note) == (Stage.STOPPED, "enough for today")
    assert cluster.executor.cancelled == ["t002"]
    assert state.trials["t002"].outcome is not None
    assert state.trials["t002"].outcome.kind is OutcomeKind.CANCELLED
    resumed = cluster.go()
    assert resumed.stage is Stage.DONE
    ended = [trial.outcome.kind for trial in searched(resumed) if trial.outcome]
    assert len([kind for kind in ended if kind is not OutcomeKind.CANCELLED]) == 4


def test_reaching_the_target_ends_the_search(folder: Path) -> None:
    """A trial above target_speedup by more than the noise leads to verification at once."""
    cluster = Cluster(folder, task=task_text(budget="target_speedup = 1.3"))
    state = cluster.run(trials=20)
    assert len(searched(state)) < 20
    assert "target" in (state.search_ended or "")
    verdict = verified_verdict(state)
    assert verdict is not None
    assert (verdict.speedup or 0.0) > 1.3


def test_a_baseline_that_fails_is_an_error_with_its_cause(folder: Path) -> None:
    """The unchanged job's own exception is in the message; nothing is searched."""
    cluster = Cluster(folder, Surface(baseline_fails=True))
    cluster.start()
    with pytest.raises(BaselineError, match=r"corpus\.bin"):
        cluster.go()
    state = read(cluster.root)
    assert state.stage is Stage.FAILED
    assert not state.of_kind(TrialKind.SEARCH)


def test_a_second_engine_is_refused(folder: Path) -> None:
    """While a live process of another pid holds the lease, nobody else may write."""
    cluster = Cluster(folder)
    cluster.start()
    journal = cluster.root / "journal"
    epoch = lease.latest_epoch(journal)
    held = {"pid": 1, "start_ticks": lease.start_ticks(1), "host": socket.gethostname(), "at": 0.0}
    (journal / f"{epoch:06d}.claim" / "lease.json").write_text(json.dumps(held))
    before = sorted(path.name for path in journal.iterdir())
    with pytest.raises(StudyBusyError) as refused:
        cluster.go()
    assert refused.value.exit_code == 3
    assert sorted(path.name for path in journal.iterdir()) == before


def test_an_engine_that_lost_its_study_writes_nothing_more(folder: Path) -> None:
    """A newer epoch ends the older engine at its next heartbeat."""
    cluster = Cluster(folder)

    def take_over(call: str, trial_id: str) -> None:
        if call == "submitted" and trial_id == "t001":
            (cluster.root / "journal" / "000009.claim").mkdir()

    cluster.executor.hook = take_over
    cluster.start()
    with pytest.raises(StudyBusyError):
        cluster.go()
    assert read(cluster.root).stage is Stage.SEARCH


def test_every_outcome_is_recorded_once(folder: Path) -> None:
    """The journal holds exactly one end for each trial."""
    cluster = Cluster(folder)
    ends: list[str] = []
    cluster.start(trials=5)
    cluster.go(
        lambda entry, _: ends.append(entry.data.trial_id) if isinstance(entry.data, TrialFinished) else None
    )
    assert len(ends) == len(set(ends)) == len(read(cluster.root).trials)
    assert sorted(cluster.executor.submitted) == sorted(ends)
