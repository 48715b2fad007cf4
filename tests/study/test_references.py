"""What trials are judged against: the unchanged job by itself, the rest by a baseline of the same length."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.invariants.timing import DRIFT_LIMIT
from engine.schema.base import Scalar
from engine.schema.job import JobHandle, JobState, JobStatus
from engine.schema.plan import LaunchPlan
from engine.schema.trial import Candidate, FailureKind, InvariantStatus, OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.stages.diagnosis import run_diagnosis
from engine.stages.search_input import observations
from tests.study import wire
from tests.study.simulated import SimulatedExecutor
from tests.study.studies import Cluster, engine

Change = Callable[[LaunchPlan, wire.Run], wire.Run]


class Bent(SimulatedExecutor):
    """A cluster whose runs are changed before they are written, and their folders after that."""

    change: Change = staticmethod(lambda plan, run: run)
    rewrite: Callable[[Path], None] = staticmethod(lambda folder: None)

    def poll(self, handle: JobHandle) -> JobStatus:
        """As the plain cluster; a finished run's folder is rewritten before anybody reads it."""
        status = super().poll(handle)
        if status.state is JobState.FINISHED:
            self.rewrite(Path(handle.trial_dir))
        return status

    def _run(self, plan: LaunchPlan, configuration: dict[str, Scalar]) -> wire.Run:
        return self.change(plan, super()._run(plan, configuration))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A started study on a cluster that can be bent."""
    cluster = Cluster(tmp_path)
    cluster.executor = Bent(cluster.surface, cluster.clock)
    cluster.start()
    return cluster


def bend(cluster: Cluster, change: Change) -> None:
    """Change all runs from now on."""
    cluster.executor.change = change  # type: ignore[attr-defined]


def scaled(run: wire.Run, factor: float) -> wire.Run:
    """The run with other losses."""
    return dataclasses.replace(run, losses=[factor * loss for loss in run.losses])


def noisy_losses(plan: LaunchPlan, run: wire.Run) -> wire.Run:
    """The unchanged job's losses lie 2 % apart; those of other trials are 1.5 % away."""
    factors = {"b001": 1.0, "b002": 1.02, "b003": 1.0, "p001": 1.01}
    return scaled(run, factors.get(plan.trial_id, 1.015))


def searched(study: StudyContext, kind: TrialKind = TrialKind.SEARCH) -> dict[str, InvariantStatus]:
    """Verdicts on one more run of the unchanged settings."""
    trial = study.run_trial(kind, study.baseline_candidate(), origin="test", reason="test")
    assert trial.outcome is not None
    return {result.name: result.status for result in trial.outcome.invariants}


def test_the_spread_of_the_unchanged_job_widens_the_band_of_candidates(cluster: Cluster) -> None:
    """Reruns beyond the tolerance complete the diagnosis, and a candidate within their spread passes."""
    bend(cluster, noisy_losses)
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        unchanged = study.state.of_kind(TrialKind.BASELINE, TrialKind.PERTURBATION)
        assert [trial.outcome and trial.outcome.kind for trial in unchanged] == [OutcomeKind.COMPLETED] * 4
        assert study.state.diagnosis is not None
        assert study.state.diagnosis.loss_band == pytest.approx(0.02 / 1.02)
        assert searched(study)["loss_trajectory"] is InvariantStatus.PASSED
        bend(cluster, lambda plan, run: scaled(run, 1.025))
        assert searched(study)["loss_trajectory"] is InvariantStatus.FAILED


def bent_norms(gradient: float, end: float) -> Callable[[Path], None]:
    """Multiplies the gradient norms, and the norms of the weights at the end."""

    def rewrite(folder: Path) -> None:
        for path in folder.glob("updates-*.jsonl"):
            records = [json.loads(line) for line in path.read_text().splitlines()]
            for record in records:
                if record["k"] == "update":
                    record["grad_norm"] *= gradient
                    record["clip"] = [gradient * norm for norm in record["clip"]]
                if record["k"] == "signature" and record["when"] == "end":
                    for parameter in record["params"]:
                        parameter["sumsq"] = 8.0 * end**2
            path.write_text("".join(json.dumps(record) + "\n" for record in records))

    return rewrite


def test_the_spread_of_norms_widens_their_bands(cluster: Cluster) -> None:
    """Candidates get three times the spread of the unchanged job's gradients and weights, and no more."""
    spread = {"b001": bent_norms(1.0, 1.0), "b003": bent_norms(1.1, 1.02)}
    cluster.executor.rewrite = lambda folder: spread.get(folder.name, bent_norms(1.0, 1.0))(folder)
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        for factors, wanted in (
            ((1.25, 1.05), InvariantStatus.PASSED),
            ((1.4, 1.08), InvariantStatus.FAILED),
        ):
            cluster.executor.rewrite = bent_norms(*factors)
            verdicts = searched(study)
            assert verdicts["gradient_health"] is wanted
            assert verdicts["update_cadence"] is wanted


def test_evidence_of_a_failure_is_numbered_as_in_the_whole_log(cluster: Cluster) -> None:
    """A line near the end of a long log is quoted with the number that an editor shows."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        noise = "".join(f"step {number}: all is well\n" for number in range(1, 20_000))
        message = wire.conflict(0)["message"]
        text = f"{noise}[rank0]: ValueError: {message}\n"
        cluster.executor.rewrite = lambda folder: (folder / "launcher.log").write_text(text)
        configuration = {
            **study.baseline_candidate().configuration,
            "attention_backend": "flex",
            "dataloader_workers": 2,
        }
        trial = study.run_trial(
            TrialKind.SEARCH, Candidate(configuration=configuration), origin="test", reason="test"
        )
        assert trial.outcome is not None
        assert trial.outcome.attribution is not None
        assert 20_000 in [line.line for line in trial.outcome.attribution.evidence]


@pytest.mark.parametrize("lost", ["", "b001", "b002"])
def test_completed_baselines_alternate_in_length(cluster: Cluster, lost: str) -> None:
    """Whatever became void on the way, three baselines end after two numbers of updates."""
    cluster.executor.lost = lambda trial_id: trial_id == lost
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        completed = study.state.counted(TrialKind.BASELINE)
        first, second, third = (trial.proposed.total_updates for trial in completed)
        assert first == third
        assert abs(first - second) == 1


def test_every_candidate_meets_a_baseline_of_its_length(cluster: Cluster) -> None:
    """Three baselines have both lengths, and the weights at the end are compared whatever the candidate's."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        lengths = {trial.proposed.total_updates for trial in study.state.of_kind(TrialKind.BASELINE)}
        assert len(lengths) == 2
        met = set()
        while met != lengths:
            searched(study)
            trial = study.state.of_kind(TrialKind.SEARCH)[-1]
            met.add(trial.proposed.total_updates)
            assert trial.outcome is not None
            cadence = next(each for each in trial.outcome.invariants if each.name == "update_cadence")
            assert "norms of 1 parameters after the last update" in cadence.reason


def unsteady(plan: LaunchPlan, run: wire.Run) -> wire.Run:
    """Every update of the window takes longer than the one before."""
    times = [0.2 * (1.0 + DRIFT_LIMIT) ** index for index in range(plan.total_updates)]
    return dataclasses.replace(run, step_times_s=times)


def test_a_run_that_was_only_unsteady_is_slow_and_no_conflict(cluster: Cluster) -> None:
    """The search is told that the trial trained as it should."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        bend(cluster, unsteady)
        assert searched(study)["steady_state"] is InvariantStatus.FAILED
        last = observations(study.state, study.task.settings)[-1]
        assert (last.kind, last.failure) == (OutcomeKind.REJECTED, FailureKind.SLOW)
        bend(cluster, lambda plan, run: scaled(unsteady(plan, run), 1.1))
        searched(study)
        last = observations(study.state, study.task.settings)[-1]
        assert (last.kind, last.failure) == (OutcomeKind.REJECTED, None)


def test_a_short_run_is_not_judged_by_its_steadiness(cluster: Cluster) -> None:
    """A re-test has one measured update: its steadiness is skipped with a reason."""
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        run_diagnosis(study)
        assert searched(study, TrialKind.RETEST)["steady_state"] is InvariantStatus.SKIPPED
