"""Nodes that go away in the middle of a run."""

from __future__ import annotations

import pytest

from engine.schema.job import Loss
from engine.schema.trial import FailureKind, Outcome
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine
from tests.drills.ending import assert_nothing_lost, job_runs
from tests.slurm.trial_folder import wait_for


def _held_on(drilled: DrilledStudy) -> tuple[Engine, str, list[str]]:
    """A study whose first run is held: its engine, the trial and the nodes of its job."""
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    job = drilled.job(held)
    nodes = next(each["nodes"] for each in drilled.cluster.jobs() if each["id"] == job)
    return engine, held, [name for name in drilled.cluster.shape.node_names if name in _expanded(nodes)]


def _expanded(nodes: str) -> list[str]:
    return ["n1", "n2"] if nodes == "n[1-2]" else [nodes]


def _void(drilled: DrilledStudy, trial_id: str) -> Outcome:
    outcome = drilled.trial(trial_id).outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.attribution.kind, outcome.attribution.blame_candidate) == (FailureKind.INFRA, False)
    return outcome


@pytest.mark.drill
def test_e07_node_that_is_taken_down(stage: NewStudy) -> None:
    """The trial is void and not requeued by Slurm; it runs again, on the other node."""
    drilled = stage()
    engine, held, nodes = _held_on(drilled)
    drilled.cluster.node_down(nodes[0])
    assert engine.wait().code == 0
    assert_nothing_lost(drilled, {held: "void"})
    outcome = _void(drilled, held)
    assert outcome.loss is Loss.NODE_FAILED
    assert outcome.suspect_nodes == tuple(nodes)
    state = drilled.state()
    again = next(each for each in state.trials.values() if each.proposed.retry_of == held)
    assert again.outcome is not None
    assert set(again.outcome.nodes).isdisjoint(nodes)


@pytest.mark.drill
def test_e07_site_that_requeues_all_the_same(stage: NewStudy) -> None:
    """A job that Slurm starts again is followed, void, and never measured: no second run under one trial."""
    drilled = stage()
    site = 'for script; do :; done; sed -i "s/^#SBATCH --no-requeue/#SBATCH --requeue/" "$script"'
    drilled.replace_program("sbatch", f'{site}\nexec "$real" "$@"')
    engine, held, _ = _held_on(drilled)
    job = drilled.job(held)
    drilled.cluster.run("scontrol", "requeue", job)
    assert engine.wait().code == 0
    assert_nothing_lost(drilled, {held: "void"})
    assert _void(drilled, held).suspect_nodes == ()
    assert len(list(drilled.folder.trial(held).glob("job.json"))) == 1
    assert {run["JobId"] for run in job_runs(drilled, held)} == {job}


@pytest.mark.drill
def test_node_that_loses_its_power(plain: NewStudy) -> None:
    """One of two nodes dies without a word: the head notices within seconds, and names it."""
    drilled = plain("sixteen")
    engine, held, nodes = _held_on(drilled)
    assert nodes == ["n1", "n2"]
    drilled.cluster.kill_node("n2")
    wait_for(lambda: drilled.trial(held).outcome is not None, "the lost node is noticed", 30.0)
    assert _void(drilled, held).suspect_nodes == ("n2",)
    drilled.cluster.start_node("n2")
    assert engine.wait(150.0).code == 0
    assert_nothing_lost(drilled, {held: "void"}, slack_s=90.0)


@pytest.mark.drill
def test_only_node_loses_its_power(plain: NewStudy) -> None:
    """The node with the head of a trial dies: when Slurm misses it, the trial is void and runs on another."""
    drilled = plain()
    engine, held, nodes = _held_on(drilled)
    drilled.cluster.kill_node(nodes[0])
    assert engine.wait(240.0).code == 0
    drilled.cluster.start_node(nodes[0])
    assert_nothing_lost(drilled, {held: "void"}, slack_s=120.0)
    outcome = _void(drilled, held)
    assert (outcome.loss, outcome.suspect_nodes) == (Loss.NODE_FAILED, tuple(nodes))
