"""A scheduler that is away, slow, forgetful or wrong, in the middle of a study."""

from __future__ import annotations

import json
import time

import pytest

from engine.schema.job import Loss
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine, stays_so
from tests.drills.ending import assert_nothing_lost, job_runs
from tests.slurm.trial_folder import wait_for


def _held(drilled: DrilledStudy) -> tuple[Engine, str]:
    drilled.hold_next()
    engine = drilled.start()
    held = drilled.until_held()
    drilled.until_submitted(held)
    return engine, held


def _has_result(drilled: DrilledStudy, trial_id: str) -> bool:
    return (drilled.folder.trial(trial_id) / "result.json").exists()


@pytest.mark.drill
def test_e06_controller_that_is_restarted(plain: NewStudy) -> None:
    """A run under way while the controller is away and comes back is followed to its end."""
    drilled = plain()
    engine, _ = _held(drilled)
    drilled.cluster.kill_controller()
    wait_for(lambda: drilled.calls("squeue")[-1]["returncode"] != 0, "squeue is asked again and fails", 60.0)
    drilled.cluster.start_controller()
    drilled.release()
    assert engine.wait().code == 0
    assert_nothing_lost(drilled)


@pytest.mark.drill
def test_e06_run_that_ends_without_a_controller(stage: NewStudy) -> None:
    """A run that ends while the controller is away counts, and the next job waits for it to come back."""
    drilled = stage()
    engine, held = _held(drilled)
    drilled.cluster.kill_controller()
    drilled.release()
    wait_for(lambda: drilled.trial(held).outcome is not None, "the result counts without a scheduler")
    wait_for(lambda: any(call["returncode"] != 0 for call in drilled.calls("sbatch")), "sbatch fails")
    drilled.cluster.start_controller()
    assert engine.wait(120.0).code == 0
    assert_nothing_lost(drilled, slack_s=60.0)


@pytest.mark.drill
def test_e03_controller_that_answers_nobody(stage: NewStudy) -> None:
    """A minute without an answer in the middle of a run and of a submission: each trial has one job."""
    drilled = stage()
    engine, held = _held(drilled)
    drilled.cluster.pause_controller()
    since = time.monotonic()
    drilled.release()
    wait_for(lambda: drilled.trial(held).outcome is not None, "the result counts without a scheduler")
    time.sleep(max(0.0, 60.0 - (time.monotonic() - since)))
    drilled.cluster.continue_controller()
    assert engine.wait(240.0).code == 0
    assert_nothing_lost(drilled, slack_s=90.0)
    unanswered = [call for call in drilled.calls("sbatch") if call["returncode"] != 0]
    assert unanswered, "no submission fell into the minute"


@pytest.mark.drill
def test_e06_controller_that_answers_nobody_while_a_run_goes_on(plain: NewStudy) -> None:
    """A run under way for a minute without an answer is not declared dead, and counts at its end."""
    drilled = plain()
    engine, held = _held(drilled)
    drilled.cluster.pause_controller()
    assert stays_so(lambda: drilled.trial(held).outcome is None, 60.0)
    drilled.cluster.continue_controller()
    drilled.release()
    assert engine.wait(120.0).code == 0
    assert_nothing_lost(drilled)


@pytest.mark.drill
def test_e06_controller_that_has_forgotten_the_job(plain: NewStudy) -> None:
    """A controller that crashes and forgets the job of the last seconds: nothing runs twice at a time."""
    drilled = plain()
    engine, held = _held(drilled)
    drilled.cluster.kill_controller(saved=False)
    drilled.cluster.start_controller()
    assert engine.wait(240.0).code == 0
    state = drilled.state()
    outcome = state.trials[held].outcome
    assert outcome is not None
    kind = outcome.kind.value
    assert_nothing_lost(drilled, {held: kind}, slack_s=120.0)
    assert kind in ("void", "completed")


@pytest.mark.drill
def test_e06_accounting_that_dies(accounting: NewStudy) -> None:
    """A study does not need slurmdbd once it has begun: a job killed meanwhile is still explained."""
    drilled = accounting()
    engine, held = _held(drilled)
    drilled.cluster.kill_accounting()
    drilled.cluster.run("scancel", drilled.job(held))
    assert engine.wait(120.0).code == 0
    assert_nothing_lost(drilled, {held: "void"})
    outcome = drilled.trial(held).outcome
    assert outcome is not None
    assert outcome.loss is Loss.CANCELLED_OUTSIDE


@pytest.mark.drill
def test_e03_lost_sbatch_answer(stage: NewStudy) -> None:
    """When sbatch queues a job and then never answers, the study goes on with that one job."""
    drilled = stage()
    lose = 'if mkdir "$here/once" 2>/dev/null; then "$real" "$@" >/dev/null; sleep 600; fi'
    drilled.replace_program("sbatch", f'{lose}\nexec "$real" "$@"')
    answer = drilled.start().wait(120.0)
    assert answer.code == 0
    assert_nothing_lost(drilled)
    first, *others = drilled.calls("sbatch")
    assert first["returncode"] is None
    assert len(others) == 3
    assert len(job_runs(drilled, "b001")) == 1


@pytest.mark.drill
def test_e04_scheduler_that_lists_nothing(stage: NewStudy) -> None:
    """A job that no command of Slurm knows is not dead while its heartbeat beats."""
    drilled = stage()
    drilled.replace_program("squeue", "exit 0")
    drilled.replace_program("scontrol", "echo slurm_load_jobs error: Invalid job id specified >&2; exit 1")
    drilled.replace_program("sacct", "exit 0")
    engine, held = _held(drilled)
    assert stays_so(lambda: drilled.trial(held).outcome is None, 100.0)
    drilled.release()
    assert engine.wait(120.0).code == 0
    assert_nothing_lost(drilled)


@pytest.mark.drill
def test_e27_few_questions(plain: NewStudy) -> None:
    """A run of half a minute costs the scheduler few questions, with the floor that the site sets."""
    drilled = plain(slurm__min_poll_s=5.0)
    engine, _ = _held(drilled)
    time.sleep(35.0)
    questions = drilled.calls("squeue") + drilled.calls("scontrol")
    drilled.release()
    assert engine.wait().code == 0
    assert_nothing_lost(drilled)
    assert 2 <= len(questions) <= 35.0 / 5.0 + 2, json.dumps(questions, indent=1)
