"""The local executor: the contract, and what only a real machine can do to a job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InfrastructureError
from engine.ports import JobExecutor
from engine.schema.job import JobHandle, JobRequest, JobState
from engine.schema.plan import LaunchPlan
from slurm.agent.procfs import read_environ, read_stat
from slurm.local.detached import AGENT_MARK
from slurm.local.executor import LocalExecutor
from tests.slurm.executor_contract import JobExecutorContract, Requests, TrialKind
from tests.slurm.trial_folder import make_trial, no_process_left, read_json, request_of, wait_for

MODES: dict[TrialKind, str] = {"short": "normal", "endless": "describe", "failing": "crash"}
STAND_IN = Path(__file__).with_name("engine_stand_in.py")


class TestLocalExecutorContract(JobExecutorContract):
    """The contract, over real processes."""

    def make_executor(self) -> JobExecutor:
        """Each is as good as any other: nothing is kept in memory."""
        return LocalExecutor()

    @pytest.fixture
    def request_for(self, tmp_path: Path) -> Iterator[Requests]:
        """Trials of the payload; ended after the test in any case."""
        handles: list[JobHandle] = []

        def prepare(kind: TrialKind) -> JobRequest:
            request = request_of(make_trial(tmp_path / kind, MODES[kind]))
            handles.append(
                JobHandle(executor="local", job_id="-", trial_dir=request.trial_dir, token=request.token)
            )
            return request

        yield prepare
        for handle in handles:
            LocalExecutor().cancel(handle)


@pytest.fixture
def submitted(tmp_path: Path) -> Iterator[Any]:
    """A function that submits a payload from an engine process of its own and kills that process."""
    handles: list[JobHandle] = []

    def submit_and_die(plan: LaunchPlan) -> JobHandle:
        (tmp_path / "request.json").write_text(request_of(plan).model_dump_json())
        arguments = [str(tmp_path / "request.json"), str(tmp_path / "handle.json")]
        engine = subprocess.Popen([sys.executable, str(STAND_IN), *arguments])
        try:
            wait_for((tmp_path / "handle.json").exists, "the engine has submitted")
        finally:
            engine.kill()
            engine.wait()
        handles.append(JobHandle.model_validate_json((tmp_path / "handle.json").read_text()))
        return handles[-1]

    yield submit_and_die
    for handle in handles:
        LocalExecutor().cancel(handle)


def _wait_for_training(plan: LaunchPlan) -> dict[str, Any]:
    path = Path(plan.output_dir) / "facts.json"
    wait_for(path.exists, "training started")
    facts: dict[str, Any] = read_json(path)
    return facts


def _wait_for_end(handle: JobHandle) -> JobState:
    executor = LocalExecutor()
    wait_for(lambda: executor.poll(handle).state.is_terminal, "the job ends")
    return executor.poll(handle).state


def test_job_survives_the_engine_and_is_adopted(tmp_path: Path, submitted: Any) -> None:
    """After kill -9 of the engine the job goes on, and another process sees it finish."""
    plan = make_trial(tmp_path / "t", "describe")
    handle = submitted(plan)
    _wait_for_training(plan)
    assert LocalExecutor().poll(handle).state is JobState.RUNNING
    (Path(plan.output_dir) / "release").touch()
    assert _wait_for_end(handle) is JobState.FINISHED
    assert read_json(tmp_path / "t" / "result.json")["exit_code"] == 0


def test_cancel_of_an_adopted_job_leaves_no_process(tmp_path: Path, submitted: Any) -> None:
    """Agent, controller, launcher and ranks of an adopted job are gone after cancel."""
    plan = make_trial(tmp_path / "t", "describe", ranks=2)
    handle = submitted(plan)
    _wait_for_training(plan)
    owners = [read_json(tmp_path / "t" / name)["pid"] for name in ("job.json", "submitit/submission.json")]
    assert all(read_stat(pid) for pid in owners)
    LocalExecutor().cancel(handle)
    assert no_process_left(plan)
    assert all(stat is None or not stat.alive for stat in map(read_stat, owners))
    assert LocalExecutor().poll(handle).state is JobState.CANCELLED


def test_cancel_ends_a_job_whose_agent_is_stuck(tmp_path: Path, submitted: Any) -> None:
    """An agent that no longer reacts is killed with everything below it."""
    plan = make_trial(tmp_path / "t", "describe", ranks=2)
    handle = submitted(plan)
    _wait_for_training(plan)
    agent = read_json(tmp_path / "t" / "job.json")["pid"]
    os.kill(agent, signal.SIGSTOP)
    LocalExecutor().cancel(handle, wait_s=0.5)
    assert no_process_left(plan)
    status = LocalExecutor().poll(handle)
    assert status.state is JobState.CANCELLED
    assert "no result" in str(status.reason)


def test_killed_agent_is_lost_and_says_why(tmp_path: Path, submitted: Any) -> None:
    """A job whose agent was killed is lost, with the process named; its ranks are cleaned up by cancel."""
    plan = make_trial(tmp_path / "t", "describe", ranks=2)
    handle = submitted(plan)
    facts = _wait_for_training(plan)
    agent = read_json(tmp_path / "t" / "job.json")["pid"]
    os.kill(agent, signal.SIGKILL)
    assert _wait_for_end(handle) is JobState.LOST
    assert f"process {agent}" in str(LocalExecutor().poll(handle).reason)
    sockets = Path(facts["environ"]["INFRARSI_PROBE_SOCKET"]).parent
    assert sockets.exists()
    LocalExecutor().cancel(handle)
    assert no_process_left(plan)
    assert not sockets.exists()


def test_agent_that_cannot_start_is_lost_with_its_output(tmp_path: Path) -> None:
    """The reason of a lost job quotes what the agent wrote to stderr."""
    plan = make_trial(tmp_path / "t", "normal")
    (tmp_path / "t" / "spec.json").write_text("{}")
    handle = LocalExecutor().submit(request_of(plan))
    assert _wait_for_end(handle) is JobState.LOST
    reason = str(LocalExecutor().poll(handle).reason)
    assert "never started" in reason
    assert "missing keys: version" in reason


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another boot"}])
def test_recycled_process_id_is_not_the_job(tmp_path: Path, change: dict[str, Any]) -> None:
    """A pid of another start time or boot is neither running nor touched by cancel."""
    plan = make_trial(tmp_path / "t", "normal")
    bystander = subprocess.Popen(["sleep", "600"], env={**os.environ, AGENT_MARK: plan.trial_dir})
    try:
        stat = read_stat(bystander.pid)
        assert stat is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        job = {"version": 1, "pid": bystander.pid, "start_ticks": stat.start_ticks, "boot_id": boot}
        job |= {"host": "h", "token": plan.token, "started_at": 0.0} | change
        (tmp_path / "t" / "job.json").write_text(json.dumps(job))
        handle = JobHandle(
            executor="local", job_id=str(bystander.pid), trial_dir=plan.trial_dir, token=plan.token
        )
        assert LocalExecutor().poll(handle).state is JobState.LOST
        LocalExecutor().cancel(handle)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


def test_same_process_of_another_program_is_not_the_job(tmp_path: Path) -> None:
    """Even with pid and start time right, a process that does not know the trial is not its agent."""
    bystander = subprocess.Popen(["sleep", "600"])
    try:
        plan = make_trial(tmp_path / "t", "normal")
        stat = read_stat(bystander.pid)
        assert stat is not None
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        job = {"pid": bystander.pid, "start_ticks": stat.start_ticks, "boot_id": boot, "host": "h"}
        (tmp_path / "t" / "job.json").write_text(json.dumps(job | {"token": plan.token}))
        handle = JobHandle(executor="local", job_id="1", trial_dir=plan.trial_dir, token=plan.token)
        LocalExecutor().cancel(handle)
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.parametrize("name", ["with space", "quo'te\"s", "new\nline", "$(touch x);&", "ünï-日本", "-x"])
def test_odd_paths_work(tmp_path: Path, name: str) -> None:
    """A trial folder may be called anything that a file system allows."""
    plan = make_trial(tmp_path / name, "normal", setup=["true"])
    handle = LocalExecutor().submit(request_of(plan))
    assert _wait_for_end(handle) is JobState.FINISHED
    result = read_json(tmp_path / name / "result.json")
    assert (result["ended"], result["ranks"][0]["updates"]) == ("exited", 5)


def test_path_with_a_submitit_placeholder_is_refused(tmp_path: Path) -> None:
    """The path would be rewritten into another folder; the error says which rule the path breaks."""
    plan = make_trial(tmp_path / "x%jy", "normal")
    with pytest.raises(InfrastructureError, match="%j"):
        LocalExecutor().submit(request_of(plan))


def test_more_than_one_node_is_refused(tmp_path: Path) -> None:
    """Two nodes need a scheduler."""
    with pytest.raises(InfrastructureError, match="nodes = 1"):
        LocalExecutor().submit(request_of(make_trial(tmp_path / "t", "normal", nodes=2)))


def test_agent_holds_no_keys_and_writes_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, submitted: Any
) -> None:
    """The agent's own environment, readable from the training, has no keys; all files are in the trial."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    monkeypatch.chdir(tmp_path)
    plan = make_trial(tmp_path / "t", "describe")
    handle = submitted(plan)
    facts = _wait_for_training(plan)
    environment = read_environ(read_json(tmp_path / "t" / "job.json")["pid"])
    assert b"ANTHROPIC_API_KEY" not in environment
    assert not [name for name in facts["environ"] if name.startswith(("SUBMITIT", "INFRARSI_AGENT"))]
    (Path(plan.output_dir) / "release").touch()
    assert _wait_for_end(handle) is JobState.FINISHED
    assert sorted(path.name for path in tmp_path.iterdir()) == ["handle.json", "request.json", "t"]


def test_packages_of_the_current_folder_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A project with its own engine.py, slurm.py or submitit.py does not break the agent."""
    plan = make_trial(tmp_path / "t", "normal")
    for name in ("engine", "slurm", "submitit"):
        for folder in (tmp_path, tmp_path / "t", tmp_path / "t" / "work"):
            (folder / f"{name}.py").write_text("raise SystemExit('the wrong module')")
    monkeypatch.chdir(tmp_path)
    handle = LocalExecutor().submit(request_of(plan))
    assert _wait_for_end(handle) is JobState.FINISHED
