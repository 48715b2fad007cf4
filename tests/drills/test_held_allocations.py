"""Held mode: allocations that are taken away, nodes and holders that die, schedulers that are away."""

from __future__ import annotations

import os
import signal
import time

import pytest

from engine.schema.job import Loss
from engine.schema.study import Stage
from engine.schema.trial import FailureKind, Outcome
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine
from tests.drills.ending import assert_nothing_lost, open_jobs
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


def _held(drilled: DrilledStudy) -> tuple[Engine, str]:
    """A study whose first run waits in its fourth update, in its first allocation."""
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    drilled.until_submitted(held)
    return engine, held


def _void_once(drilled: DrilledStudy, held: str, allocations: int = 2) -> Outcome:
    """Nothing but the held run was disturbed; it ran again in another allocation."""
    state = assert_nothing_lost(drilled, {**failed_by_themselves(drilled), held: "void"})
    assert_given_back(drilled, state, allocations)
    outcome = state.trials[held].outcome
    assert outcome is not None
    assert outcome.attribution is not None
    assert (outcome.attribution.kind, outcome.attribution.blame_candidate) == (FailureKind.INFRA, False)
    again = [each for each in state.trials.values() if each.proposed.retry_of == held]
    assert [each.outcome.kind.value for each in again if each.outcome] == ["completed"]
    return outcome


@pytest.mark.drill
def test_allocation_cancelled_in_a_run(stage: NewStudy) -> None:
    """Somebody's scancel of the allocation voids the run in it, blames no node, and costs one allocation."""
    drilled = stage("eight_held", **STEADY)
    engine, held = _held(drilled)
    since = time.monotonic()
    drilled.cluster.run("scancel", allocation_job(drilled))
    wait_for(lambda: drilled.trial(held).outcome is not None, "the end is noticed", 25.0)
    assert engine.wait().code == 0
    assert time.monotonic() - since < 60.0
    outcome = _void_once(drilled, held)
    assert (outcome.loss, outcome.suspect_nodes) == (Loss.CANCELLED_OUTSIDE, ())


@pytest.mark.drill
def test_node_taken_down_in_a_run(stage: NewStudy) -> None:
    """The node is suspected, and the next allocation is on the other one."""
    drilled = stage("eight_held", **STEADY)
    engine, held = _held(drilled)
    node = event(drilled, "allocated")["nodelist"]
    drilled.cluster.node_down(node)
    assert engine.wait().code == 0
    outcome = _void_once(drilled, held)
    assert (outcome.loss, outcome.suspect_nodes) == (Loss.NODE_FAILED, (node,))
    assert event(drilled, "allocated", 2)["nodelist"] != node


@pytest.mark.drill
def test_one_of_two_nodes_loses_its_power(plain: NewStudy) -> None:
    """A run over two nodes whose second one dies is void within a minute, and its node is named."""
    drilled = plain("sixteen_held", **STEADY)
    engine, held = _held(drilled)
    since = time.monotonic()
    drilled.cluster.kill_node("n2")
    drilled.cluster.start_node("n2")
    wait_for(lambda: drilled.trial(held).outcome is not None, "the dead node is noticed", 60.0)
    print(f"noticed after {time.monotonic() - since:.1f} s")
    assert engine.wait(200.0).code == 0
    assert _void_once(drilled, held, len(numbers(drilled))).suspect_nodes == ("n2",)


@pytest.mark.drill
def test_holder_killed_in_a_run(stage: NewStudy) -> None:
    """With SIGKILL to the holder its run is over within seconds, all of it, and another holder goes on."""
    drilled = stage("eight_held", **STEADY)
    engine, held = _held(drilled)
    allocated = event(drilled, "allocated")
    os.kill(allocated["pid"], signal.SIGKILL)
    wait_for(lambda: drilled.trial(held).outcome is not None, "the end is noticed", 40.0)
    assert engine.wait().code == 0
    outcome = _void_once(drilled, held)
    assert (outcome.loss, outcome.suspect_nodes) == (Loss.AGENT_DIED, (allocated["nodelist"],))


@pytest.mark.drill
def test_controller_restarted_between_runs(stage: NewStudy) -> None:
    """A run ends without a controller; the next one waits for it, in the same allocation; nothing is void."""
    drilled = stage("eight_held", **STEADY)
    engine, held = _held(drilled)
    drilled.cluster.kill_controller()
    drilled.release()
    wait_for(lambda: drilled.trial(held).outcome is not None, "the result counts without a scheduler")
    wait_for(lambda: _started(drilled) == 2, "the next run is to be started")
    step_log = "trials/*/submitit/srun.log"
    wait_for(lambda: any(path.stat().st_size for path in drilled.study.glob(step_log)), "srun complains")
    drilled.cluster.start_controller()
    assert engine.wait(150.0).code == 0
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled))
    assert_given_back(drilled, state, 1)


def _started(drilled: DrilledStudy) -> int:
    return [entry["kind"] for entry in events(drilled)].count("started")


@pytest.mark.drill
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_engine_that_goes_and_another_that_comes(plain: NewStudy, number: signal.Signals) -> None:
    """Killed or sent away, the engine leaves run and allocation; its successor goes on with both."""
    drilled = plain("eight_held", budget__trials=1, **STEADY)
    engine, held = _held(drilled)
    engine.send(number)
    assert engine.process.wait(timeout=20) == (-9 if number is signal.SIGKILL else 130)
    assert drilled.trial(held).outcome is None
    assert [job["id"] for job in open_jobs(drilled)] == [allocation_job(drilled)]
    successor = drilled.resume()
    wait_for(lambda: "resume" in successor.narration or drilled.trial(held).handle, "it has begun")
    drilled.release()
    assert successor.wait(200.0).code in (0, 1)
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE)
    assert_given_back(drilled, state, 1)


@pytest.mark.drill
def test_run_that_ends_while_nobody_looks(plain: NewStudy) -> None:
    """A run that finished after its engine was killed counts for the next engine, in the same allocation."""
    drilled = plain("eight_held", budget__trials=1, **STEADY)
    engine, held = _held(drilled)
    engine.kill()
    drilled.release()
    event(drilled, "ended")
    assert drilled.resume().wait(200.0).code in (0, 1)
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE)
    assert_given_back(drilled, state, 1)
    assert state.trials[held].outcome is not None


@pytest.mark.drill
def test_interrupted_study_gives_back(plain: NewStudy) -> None:
    """Ctrl-C in a run cancels it and leaves no allocation behind; the hours it was held are counted."""
    drilled = plain("eight_held", **STEADY)
    engine, held = _held(drilled)
    engine.send(signal.SIGINT)
    assert engine.wait(60.0).code == 130
    state = assert_nothing_lost(drilled, {held: "cancelled"}, stage=Stage.STOPPED)
    assert_given_back(drilled, state, 1)


@pytest.mark.drill
@pytest.mark.timeout(420)
def test_allocation_without_an_engine_gives_itself_back(plain: NewStudy) -> None:
    """Two minutes after its last run a forgotten allocation ends by itself; `resume` asks for another."""
    drilled = plain("eight_held", budget__trials=1, **STEADY)
    engine, held = _held(drilled)
    engine.kill()
    drilled.release()
    ended_at = event(drilled, "ended")["at"]
    leaving = event(drilled, "leaving", limit_s=150.0)
    assert leaving["reason"] == "idle"
    assert leaving["at"] - ended_at == pytest.approx(120.0, abs=5.0)
    wait_for(lambda: not open_jobs(drilled), "the job is over", 20.0)
    assert drilled.resume().wait(200.0).code in (0, 1)
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE)
    assert_given_back(drilled, state, 2)
    assert state.trials[held].outcome is not None


@pytest.mark.drill
def test_e12_allocations_that_are_shorter_than_the_study(plain: NewStudy) -> None:
    """A study goes from one allocation of a minute to the next, and its end cuts no run off."""
    drilled = plain("eight_held", budget__trials=6, slurm__time_limit_min=1, **STEADY)
    assert drilled.start("run").wait(280.0).code in (0, 1)
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE)
    assert len(numbers(drilled)) >= 2
    assert_given_back(drilled, state, len(numbers(drilled)))
