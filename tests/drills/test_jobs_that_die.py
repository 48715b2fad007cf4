"""Jobs and ranks that end before they should: the right one is blamed, no other is."""

from __future__ import annotations

import time

import pytest

from engine.schema.job import Loss
from engine.schema.study import Stage
from engine.schema.trial import FailureKind
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy
from tests.drills.ending import assert_nothing_lost

_CANDIDATE = ("--set", "micro_batch_size=2")


def _void_then_repeated(drilled: DrilledStudy, loss: Loss | None, kind: FailureKind) -> None:
    """The first baseline was nobody's fault and ran again; nothing else was touched."""
    state = assert_nothing_lost(drilled, {"b001": "void"})
    outcome = state.trials["b001"].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.loss, outcome.attribution.kind) == (loss, kind)
    assert outcome.attribution.blame_candidate is False
    assert state.trials["b002"].proposed.retry_of == "b001"
    assert list(state.trials) == ["b001", "b002", "b003", "b004", "p001"]


def _scancel(drilled: DrilledStudy) -> None:
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    since = time.monotonic()
    drilled.cluster.run("scancel", drilled.job(held))
    drilled.until_proposed("baseline")
    assert engine.wait().code == 0
    assert time.monotonic() - since < 60.0
    _void_then_repeated(drilled, Loss.CANCELLED_OUTSIDE, FailureKind.INFRA)
    why = drilled.trial(held).outcome
    assert why is not None
    assert why.suspect_nodes == ()


def test_e01_job_cancelled_by_hand_without_accounting(plain: NewStudy) -> None:
    """A job ended from outside voids the trial, is named, blames no node, and the trial runs again."""
    _scancel(plain())


@pytest.mark.drill
def test_job_cancelled_by_hand(accounting: NewStudy) -> None:
    """The same where slurmdbd tells who cancelled it."""
    _scancel(accounting())


@pytest.mark.drill
def test_e02_job_killed_at_once(stage: NewStudy) -> None:
    """A job that is killed with SIGKILL, agent and all, is over within seconds, with a cause."""
    drilled = stage()
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    drilled.cluster.run("scancel", "--full", "--signal=KILL", drilled.job(held))
    since = time.monotonic()
    while drilled.trial(held).outcome is None:
        assert time.monotonic() - since < 25.0, "the killed job was not noticed"
        time.sleep(0.1)
    assert engine.wait().code == 0
    outcome = drilled.trial(held).outcome
    assert outcome is not None
    _void_then_repeated(drilled, outcome.loss, FailureKind.INFRA)
    assert outcome.loss in (Loss.AGENT_DIED, Loss.CANCELLED_OUTSIDE)


def test_e19_rank_that_raises_on_one_of_two_nodes(plain: NewStudy) -> None:
    """One of sixteen ranks raises: the trial ends at once, the candidate is blamed, its hours are shown."""
    drilled = plain("sixteen")
    engine = drilled.start("trial", *_CANDIDATE)
    assert drilled.until_proposed("manual") == "m001"
    drilled.order("raise", rank=9)
    answer = engine.wait()
    state = assert_nothing_lost(drilled, {"m001": "failed"}, stage=Stage.DONE)
    outcome = state.trials["m001"].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.attribution.kind, outcome.attribution.rank) == (FailureKind.CONFIG_CONFLICT, 9)
    assert outcome.attribution.blame_candidate is True
    assert "the drill asked rank 9" in outcome.attribution.cause
    assert outcome.wall_s < 60.0
    assert answer.code == 1
    assert answer.value["cost_gpu_hours"] == outcome.gpu_hours > 0.0


@pytest.mark.drill
@pytest.mark.parametrize(("mode", "kind"), [("exit", FailureKind.UNKNOWN), ("kill", FailureKind.OOM_HOST)])
def test_e19_rank_that_goes_without_a_word(plain: NewStudy, mode: str, kind: FailureKind) -> None:
    """A silent death of one rank ends the trial; as the blame is open it runs once more before it counts."""
    drilled = plain("sixteen", budget__trials=1)
    engine = drilled.start("run")
    assert drilled.until_proposed("search") == "t001"
    drilled.order(mode, rank=9)
    drilled.until_proposed("verification")
    engine.send(2)
    engine.wait()
    state = drilled.state()
    outcome = state.trials["t001"].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.attribution.kind, outcome.attribution.blame_candidate) == (kind, None)
    assert outcome.wall_s < 60.0
    repeated = [each for each in state.trials.values() if each.proposed.retry_of == "t001"]
    assert [each.outcome.kind.value for each in repeated if each.outcome] == ["completed"]


@pytest.mark.drill
def test_e10_job_killed_for_its_memory(stage: NewStudy) -> None:
    """Slurm kills for host memory: the candidate is blamed, the sizes are told, nothing is tried again."""
    drilled = stage(slurm__mem="500M")
    engine = drilled.start("trial", *_CANDIDATE)
    assert drilled.until_proposed("manual") == "m001"
    drilled.order("hog")
    answer = engine.wait()
    assert answer.code == 1
    state = assert_nothing_lost(drilled, {"m001": "failed"}, stage=Stage.DONE)
    outcome = state.trials["m001"].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.loss, outcome.attribution.kind) == (Loss.HOST_OOM, FailureKind.OOM_HOST)
    assert outcome.attribution.blame_candidate is True
    assert "500M" in outcome.attribution.cause


@pytest.mark.drill
def test_e12_allocation_that_ends_before_the_trial(stage: NewStudy) -> None:
    """A minute's limit does not disturb trials of seconds; one that it cuts short is nobody's fault."""
    drilled = stage(slurm__time_limit_min=1)
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    assert engine.wait(150.0).code == 0
    _void_then_repeated(drilled, None, FailureKind.INFRA)
    outcome = drilled.trial(held).outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert "slurm.time_limit_min" in outcome.attribution.cause
    assert 12.0 < outcome.wall_s < 70.0


@pytest.mark.drill
def test_allocation_that_ends_too_early_every_time(plain: NewStudy) -> None:
    """Baselines that never fit into the allocation end the study with the setting to change, after three."""
    drilled = plain(slurm__time_limit_min=1, pace__step_ms=20_000)
    answer = drilled.start().wait(280.0)
    assert answer.code == 3
    assert "slurm.time_limit_min" in answer.value["error"]["message"]
    void = {"b001": "void", "b002": "void", "b003": "void"}
    assert_nothing_lost(drilled, void, stage=Stage.FAILED)
