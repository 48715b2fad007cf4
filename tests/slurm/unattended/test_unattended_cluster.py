"""Whole studies whose engine is a job of a real Slurm."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.state import StudyState, replay
from engine.schema.trial import OutcomeKind
from slurm.unattended.folder import EngineFolder
from slurm.unattended.records import EngineState, Phase, read_record
from tests.slurm.trial_folder import wait_for
from tests.slurm.unattended.engine_jobs import ROOT
from tests.slurm_cluster.cluster import SlurmCluster
from tests.slurm_cluster.projects import copy_project, order, release

END_S = 240.0
pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]


def _infrarsi(*words: str | Path) -> tuple[int, dict[str, Any], str]:
    """A command in a process of its own: afterwards nothing of it is left."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "infrarsi_tui.main", *map(str, words), "--json"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )
    return done.returncode, json.loads(done.stdout), done.stderr


def _submit(tmp_path: Path, project: Path, *words: str) -> tuple[EngineFolder, str]:
    code, value, words_ = _infrarsi("submit", project, "--out", tmp_path / "study", *words)
    assert code == 0, words_
    return EngineFolder(Path(value["engine_dir"])), value["job_id"]


def _state(folder: EngineFolder) -> EngineState | None:
    return read_record(folder.state, EngineState)


def _ended(folder: EngineFolder) -> EngineState:
    """The state at the end of the study."""

    def at_end() -> EngineState | None:
        state = _state(folder)
        return state if state is not None and state.phase is Phase.ENDED else None

    try:
        state = wait_for(at_end, "the engine job ends", END_S)
    except TimeoutError as error:
        log = folder.log.read_text()[-3000:] if folder.log.exists() else "no log"
        raise AssertionError(f"{error}\n{_state(folder)}\n{log}") from error
    assert isinstance(state, EngineState)
    return state


def _study(folder: EngineFolder) -> StudyState:
    return replay(read_entries(StudyFolder.open(folder.study).journal))


def _waits_in_trial(orders: Path) -> None:
    wait_for((orders / "waiting-1").exists, "a trial is held in its second update", END_S)


def _held_project(tmp_path: Path, task: str = "eight", **changes: Any) -> tuple[Path, Path]:
    """A small task whose first trial waits for `release`."""
    orders = tmp_path / "orders"
    orders.mkdir()
    changes = {"budget__trials": 2, "pace__step_ms": 50, **changes}
    project = copy_project(tmp_path / "project", task, drill__folder=str(orders), **changes)
    order(orders, "wait", rank=1, update=1)
    return project, orders


def _assert_nothing_lost_or_doubled(folder: EngineFolder, state: EngineState) -> None:
    """Every trial has one outcome and was not void; every folder was handed over once."""
    study = _study(folder)
    assert state.exit_code in (0, 1), folder.log.read_text()[-3000:]
    outcomes = {trial_id: trial.outcome for trial_id, trial in study.trials.items()}
    assert outcomes
    assert all(outcome is not None for outcome in outcomes.values())
    assert not [name for name, outcome in outcomes.items() if outcome and outcome.kind is OutcomeKind.VOID]
    assert sorted(path.name for path in (folder.study / "trials").iterdir()) == sorted(outcomes)


def test_a_study_outlives_who_submitted_it(tmp_path: Path, cluster: SlurmCluster) -> None:
    """The engine job runs the study to its end; a second submission is refused while it does."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    code, value, _ = _infrarsi("submit", project, "--out", tmp_path / "study")
    assert code == 3
    assert value["error"]["kind"] == "study_busy"
    release(orders)
    _assert_nothing_lost_or_doubled(folder, _ended(folder))
    assert len([job for job in cluster.jobs() if job["name"].startswith("infrarsi-engine")]) == 1
    assert json.loads(folder.result.read_text())["study_dir"] == str(folder.study)
    code, status, _ = _infrarsi("status", folder.study)
    assert (code, status["state"]) == (0, "done")
    assert (code, status["engine"]) == (0, None)
    assert job_id in {job["id"] for job in cluster.jobs()}


def test_a_requeue_in_the_middle_changes_nothing(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """Slurm takes the engine job away and starts it again: the running trial goes on and counts."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    assert plain_cluster.run("scontrol", "requeue", job_id).returncode == 0
    wait_for(lambda: _phase(folder) is Phase.LEFT, "the engine leaves", 60.0)
    trials = [job for job in plain_cluster.jobs() if not job["name"].startswith("infrarsi-engine")]
    assert [job["state"] for job in trials if job["state"] == "RUNNING"] == ["RUNNING"]
    release(orders)
    _start_requeued(plain_cluster, job_id)
    state = _ended(folder)
    assert state.restarts == 1
    _assert_nothing_lost_or_doubled(folder, state)


def test_the_warning_of_the_time_limit(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """With the signal that Slurm sends before the limit the engine detaches and its job requeues itself."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    assert plain_cluster.run("scancel", "--batch", "--signal=USR1", job_id).returncode == 0
    wait_for(lambda: _job(plain_cluster, job_id)["state"] == "PENDING", "the job waits again", 60.0)
    release(orders)
    _start_requeued(plain_cluster, job_id)
    state = _ended(folder)
    assert state.restarts == 1
    _assert_nothing_lost_or_doubled(folder, state)


def test_a_cancelled_engine_stays_away_and_can_be_submitted_again(
    tmp_path: Path, plain_cluster: SlurmCluster
) -> None:
    """A scancel ends the engine alone; a second submission goes on with the trial that was left running."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    plain_cluster.run("scancel", job_id)
    wait_for(lambda: _job(plain_cluster, job_id)["state"] == "CANCELLED", "the engine job is gone", 60.0)
    assert _phase(folder) is Phase.LEFT
    again, second = _submit(tmp_path, project)
    assert (again, second != job_id) == (folder, True)
    release(orders)
    _assert_nothing_lost_or_doubled(folder, _ended(folder))


def test_a_stopped_study_ends_its_job(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """`infrarsi stop` ends the study and with it the job: nothing is retried."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    assert _infrarsi("stop", folder.study)[0] == 0
    state = _ended(folder)
    assert (state.exit_code, state.words) == (130, "stopped by a person")
    wait_for(lambda: _job(plain_cluster, job_id)["state"] == "FAILED", "the job is over", 60.0)


def test_engine_and_trials_in_one_allocation(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """With --inside one job is all that Slurm ever sees, and the study is done in it."""
    project = copy_project(tmp_path / "project", "eight", budget__trials=2, pace__step_ms=50)
    folder, job_id = _submit(tmp_path, project, "--inside")
    _assert_nothing_lost_or_doubled(folder, _ended(folder))
    ours = [job for job in plain_cluster.jobs() if job["name"].startswith("infrarsi-")]
    assert job_id in {job["id"] for job in ours}
    assert all(job["name"].startswith("infrarsi-engine") for job in ours if int(job["id"]) >= int(job_id))


@pytest.mark.drill
def test_a_requeue_of_the_whole_allocation(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """With --inside a requeue takes the running trial along: it is lost, repeated, and the study goes on."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project, "--inside")
    _waits_in_trial(orders)
    plain_cluster.run("scontrol", "requeue", job_id)
    wait_for(lambda: _job(plain_cluster, job_id)["state"] == "PENDING", "the job waits again", 60.0)
    release(orders)
    _start_requeued(plain_cluster, job_id)
    state = _ended(folder)
    assert (state.exit_code in (0, 1), state.restarts) == (True, 1), folder.log.read_text()[-3000:]
    outcomes = [trial.outcome for trial in _study(folder).trials.values()]
    assert len([outcome for outcome in outcomes if outcome and outcome.kind is OutcomeKind.VOID]) == 1
    assert all(outcome is not None for outcome in outcomes)


@pytest.mark.drill
@pytest.mark.parametrize("mode", ["REQUEUE", "CANCEL"])
def test_a_job_of_higher_rank(tmp_path: Path, plain_cluster: SlurmCluster, mode: str) -> None:
    """Another job takes the node of the engine: it goes on by itself, whatever preemption does."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project)
    _waits_in_trial(orders)
    node = _job(plain_cluster, job_id)["nodes"]
    plain_cluster.run("scontrol", "update", "partitionname=gpu", f"preemptmode={mode.lower()}")
    try:
        plain_cluster.run("sbatch", "-p", "urgent", "-w", node, "--exclusive", "--wrap", "sleep 5")
        wait_for(lambda: _phase(folder) is not Phase.RUNNING, "the engine leaves", 60.0)
        wait_for(lambda: _job(plain_cluster, job_id)["state"] in ("PENDING", "PREEMPTED"), "the end", 60.0)
    finally:
        plain_cluster.run("scontrol", "update", "partitionname=gpu", "preemptmode=requeue")
    release(orders)
    wait_for(lambda: _hurried(plain_cluster, folder), "the engine runs again", 90.0)
    state = _ended(folder)
    assert state.exit_code in (0, 1), folder.log.read_text()[-3000:]
    assert (state.job_id == job_id, state.restarts) == ((True, 1) if mode == "REQUEUE" else (False, 0))
    assert all(trial.outcome is not None for trial in _study(folder).trials.values())


@pytest.mark.drill
def test_the_real_time_limit(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A job of four minutes is warned by Slurm itself, leaves in time and goes on in its next turn."""
    project, orders = _held_project(tmp_path)
    folder, job_id = _submit(tmp_path, project, "--engine-time-min", "4")
    _waits_in_trial(orders)
    wait_for(lambda: _job(plain_cluster, job_id)["state"] == "PENDING", "the job waits again", 300.0)
    release(orders)
    _start_requeued(plain_cluster, job_id)
    state = _ended(folder)
    assert state.restarts == 1
    _assert_nothing_lost_or_doubled(folder, state)


def _phase(folder: EngineFolder) -> Phase | None:
    state = _state(folder)
    return None if state is None else state.phase


def _hurried(cluster: SlurmCluster, folder: EngineFolder) -> bool:
    cluster.hurry_requeued()
    return _phase(folder) is Phase.RUNNING


def _job(cluster: SlurmCluster, job_id: str) -> dict[str, str]:
    return next(job for job in cluster.jobs() if job["id"] == job_id)


def _start_requeued(cluster: SlurmCluster, job_id: str) -> None:
    """Slurm keeps requeued jobs for two minutes before it starts them."""

    def runs() -> bool:
        cluster.hurry_requeued()
        return _job(cluster, job_id)["state"] == "RUNNING"

    wait_for(runs, "the engine job runs again", 90.0)
