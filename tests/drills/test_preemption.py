"""Jobs of higher rank that take the nodes of a run away, with and without being started again."""

from __future__ import annotations

import pytest

from engine.journal.state import StudyState
from engine.schema.job import Loss
from engine.schema.trial import FailureKind
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine
from tests.drills.ending import assert_nothing_lost, job_runs
from tests.drills.holding import (
    STEADY,
    allocation_job,
    assert_given_back,
    event,
    events,
    failed_by_themselves,
    numbers,
)
from tests.slurm.trial_folder import wait_for


def _preempted(drilled: DrilledStudy, *, requeued: bool = False) -> tuple[Engine, str, str]:
    """A study whose first run's job was taken away for another one: engine, trial and job.

    `requeued` makes the job one that Slurm starts again, as a site's plugin may, whatever was asked for.
    """
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    drilled.until_submitted(held)
    job = allocation_job(drilled) if drilled.task.endswith("held") else drilled.job(held)
    if requeued:
        assert drilled.cluster.run("scontrol", "update", f"jobid={job}", "requeue=1").returncode == 0
    node = next(each["nodes"] for each in drilled.cluster.jobs() if each["id"] == job)
    urgent = ["-p", "urgent", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 5"]
    assert drilled.cluster.run("sbatch", *urgent).returncode == 0
    wait_for(lambda: drilled.trial(held).outcome is not None, "the preemption is noticed", 60.0)
    return engine, held, job


def _end(drilled: DrilledStudy, engine: Engine, held: str, loss: tuple[Loss, ...]) -> StudyState:
    """The run was void, nobody is blamed, no node is suspected, and it ran again."""
    assert engine.wait(150.0).code == 0
    state = assert_nothing_lost(drilled, {**failed_by_themselves(drilled), held: "void"}, slack_s=10.0)
    outcome = state.trials[held].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert outcome.loss in loss, outcome.attribution
    kind = FailureKind.PREEMPTED if outcome.loss is Loss.PREEMPTED else FailureKind.INFRA
    assert (outcome.attribution.kind, outcome.attribution.blame_candidate) == (kind, False)
    assert outcome.suspect_nodes == ()
    again = [each for each in state.trials.values() if each.proposed.retry_of == held]
    assert [each.outcome.kind.value for each in again if each.outcome] == ["completed"]
    return state


@pytest.mark.drill
def test_e07_run_that_is_preempted(stage: NewStudy) -> None:
    """Our jobs are not started again by Slurm: the run is void, as preempted, and is submitted anew."""
    drilled = stage("eight", **STEADY)
    engine, held, job = _preempted(drilled)
    _end(drilled, engine, held, (Loss.PREEMPTED,))
    assert {run["JobId"] for run in job_runs(drilled, held)} == {job}


@pytest.mark.drill
def test_e07_run_that_is_preempted_and_requeued(stage: NewStudy) -> None:
    """Where a site requeues all the same, the second start runs nothing and is not waited for."""
    drilled = stage("eight", **STEADY)
    engine, held, job = _preempted(drilled, requeued=True)
    drilled.cluster.hurry_requeued()
    _end(drilled, engine, held, (Loss.PREEMPTED, Loss.RESTARTED))
    assert {run["JobId"] for run in job_runs(drilled, held)} == {job}


@pytest.mark.drill
def test_e07_allocation_that_is_preempted(stage: NewStudy) -> None:
    """The run in a held allocation is void, as preempted; the next allocation takes its place."""
    drilled = stage("eight_held", **STEADY)
    engine, held, _ = _preempted(drilled)
    state = _end(drilled, engine, held, (Loss.PREEMPTED,))
    assert_given_back(drilled, state, 2)


@pytest.mark.drill
def test_e07_allocation_that_is_preempted_and_requeued(stage: NewStudy) -> None:
    """An allocation that Slurm starts a second time runs nothing, and another one takes its place."""
    drilled = stage("eight_held", **STEADY)
    engine, held, _ = _preempted(drilled, requeued=True)
    drilled.cluster.hurry_requeued()
    state = _end(drilled, engine, held, (Loss.PREEMPTED, Loss.RESTARTED))
    assert len(numbers(drilled)) == 2
    assert [entry["kind"] for entry in events(drilled)].count("started") == 1
    assert event(drilled, "allocated")["restarts"] == 0
    assert all(use.ended_at is not None for use in state.allocations.values())
