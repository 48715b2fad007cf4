"""The Slurm executor on a real cluster: the contract, and what only a scheduler can do to a job."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.durable import write_json
from engine.errors import InfrastructureError, TaskFileError
from engine.ports import JobExecutor
from engine.schema.job import JobHandle, JobRequest, JobState, JobStatus, Loss
from slurm.agent.procfs import read_environ
from slurm.trial_files import submission_file
from tests.slurm.batch.jobs import fresh_request, fresh_trial, slurm_executor, unrecorded
from tests.slurm.executor_contract import JobExecutorContract, Requests, TrialKind
from tests.slurm.trial_folder import no_process_left, read_json, request_of, wait_for
from tests.slurm_cluster.cluster import SlurmCluster

MODES: dict[TrialKind, str] = {"short": "normal", "endless": "describe", "failing": "crash"}
NESTED = Path(__file__).with_name("nested_engine.py")


class TestSlurmExecutorContract(JobExecutorContract):
    """The contract, with and without accounting."""

    limit_s = 60.0

    @pytest.fixture(autouse=True)
    def place(self, cluster: SlurmCluster, tmp_path: Path) -> None:
        """A study folder on a cluster."""
        self.study_dir = tmp_path

    def make_executor(self) -> JobExecutor:
        """Each is as good as any other: nothing but the pace of questions is kept in memory."""
        return slurm_executor(self.study_dir)

    @pytest.fixture
    def request_for(self, tmp_path: Path) -> Requests:
        """Trials of the payload; the cluster ends what is left of them."""

        def prepare(kind: TrialKind) -> JobRequest:
            return fresh_request(tmp_path / kind, MODES[kind])

        return prepare


def _wait(executor: JobExecutor, handle: JobHandle, limit_s: float = 60.0) -> JobStatus:
    def final() -> JobStatus | None:
        status = executor.poll(handle)
        return status if status.state.is_terminal else None

    status = wait_for(final, f"{handle.job_id} ends", limit_s)
    assert isinstance(status, JobStatus)
    return status


def _facts(plan: Any) -> dict[str, Any]:
    path = Path(plan.output_dir) / "facts.json"
    wait_for(path.exists, "training started", 60.0)
    facts: dict[str, Any] = read_json(path)
    return facts


def _names(cluster: SlurmCluster) -> list[str]:
    return [job["name"] for job in cluster.jobs()]


def _wrap_sbatch(folder: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    folder.mkdir()
    wrapper = folder / "sbatch"
    wrapper.write_text(f"#!/bin/sh\nreal={shutil.which('sbatch')}\n{text}\n")
    wrapper.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_job_is_what_was_asked_for(
    tmp_path: Path, plain_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shape, name and GPUs arrive; keys, pinning and limits of the caller's own job do not."""
    for name, value in {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_JOB_ID": "999999",
        "SLURM_MEM_PER_CPU": "1",
        "SBATCH_PARTITION": "nope",
        "ANTHROPIC_API_KEY": "k",
        "MY_TOKEN": "t",
        "PLAIN": "p",
    }.items():
        monkeypatch.setenv(name, value)
    plan = fresh_trial(tmp_path / "t", "describe", ranks=2, cpus_per_rank=3)
    executor = slurm_executor(tmp_path, gpus=2, gpu_type="h100")
    handle = executor.submit(request_of(plan))
    _facts(plan)
    shown = plain_cluster.run("scontrol", "show", "job", handle.job_id).stdout
    assert f"JobName=infrarsi-{plan.token[:12]}" in shown
    assert "NumNodes=1 NumCPUs=6 NumTasks=1 CPUs/Task=6" in shown
    assert re.search(r"gres[:/]gpu:h100[:=]2", shown)
    assert "Requeue=0" in shown
    assert plan.token not in shown
    agent = read_environ(read_json(tmp_path / "t" / "job.json")["pid"])
    assert not {b"ANTHROPIC_API_KEY", b"MY_TOKEN", b"SBATCH_PARTITION", b"SLURM_MEM_PER_CPU"} & set(agent)
    assert agent[b"PLAIN"] == b"p"
    assert agent[b"SLURM_CONF"] == os.environ["SLURM_CONF"].encode()
    assert agent[b"SLURM_JOB_ID"] == handle.job_id.encode()
    assert b"0x1" not in agent.get(b"SLURM_CPU_BIND", b"")
    (Path(plan.output_dir) / "release").touch()
    status = _wait(executor, handle)
    assert status.state is JobState.FINISHED
    result = read_json(tmp_path / "t" / "result.json")
    assert (result["ended"], result["exit_code"], len(result["ranks"])) == ("exited", 0, 2)


def test_e03_lost_answer_makes_no_second_job(
    tmp_path: Path, cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When sbatch queues the job and then hangs, the one job is found, adopted and runs to its end."""
    _wrap_sbatch(tmp_path / "bin", monkeypatch, '"$real" "$@" > /dev/null\nsleep 600')
    executor = slurm_executor(tmp_path, timeout_s=3.0)
    handle = executor.submit(fresh_request(tmp_path / "t", "normal"))
    assert _names(cluster).count(f"infrarsi-{handle.token[:12]}") == 1
    assert read_json(submission_file(handle))["job_id"] == handle.job_id
    assert _wait(executor, handle).state is JobState.FINISHED


def test_engine_that_died_in_sbatch_leaves_a_job_that_is_found(
    tmp_path: Path, plain_cluster: SlurmCluster
) -> None:
    """Without a recorded id the job is found by its name; it starts although nobody renamed its call."""
    request = fresh_request(tmp_path / "t", "normal")
    handle = slurm_executor(tmp_path).submit(request)
    record = read_json(submission_file(handle))
    write_json(submission_file(handle), record | {"job_id": None, "submitted_at": None})
    status = _wait(slurm_executor(tmp_path), unrecorded(request))
    assert status.state is JobState.FINISHED


def test_call_of_a_job_is_found_before_it_is_renamed(
    tmp_path: Path, plain_cluster: SlurmCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job does not wait for an engine that is gone: it ends although its call keeps its first name."""
    _wrap_sbatch(tmp_path / "bin", monkeypatch, '"$real" "$@" > "${0%/*}/answer"\nkill -9 $PPID\nsleep 600')
    request = fresh_request(tmp_path / "t", "normal")
    (tmp_path / "request.json").write_text(request.model_dump_json())
    engine = subprocess.run(
        [sys.executable, str(NESTED), str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert engine.returncode == -signal.SIGKILL
    assert "job_id" not in {k for k, v in read_json(submission_file(unrecorded(request))).items() if v}
    status = _wait(slurm_executor(tmp_path), unrecorded(request))
    assert status.state is JobState.FINISHED


@pytest.mark.parametrize("age_s", [10.0, 500.0])
def test_submission_that_never_reached_slurm(
    tmp_path: Path, plain_cluster: SlurmCluster, age_s: float
) -> None:
    """A job that could still turn up is awaited for two minutes, then it is lost and never started."""
    request = fresh_request(tmp_path / "t", "normal")
    handle = unrecorded(request)
    submission_file(handle).parent.mkdir()
    at = os.stat(request.spec_path).st_mtime - age_s
    write_json(submission_file(handle), {"token": request.token, "intended_at": at, "job_id": None})
    status = slurm_executor(tmp_path).poll(handle)
    if age_s < 120:
        assert status.state is JobState.PENDING
    else:
        assert (status.state, status.loss) == (JobState.LOST, Loss.NEVER_STARTED)


def test_waiting_job_says_why_and_is_cancelled_at_once(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A pending job has a sentence; cancelling leaves nothing in the queue."""
    executor = slurm_executor(tmp_path, extra={"begin": "now+1hour"})
    handle = executor.submit(fresh_request(tmp_path / "t", "normal"))

    def explained() -> bool:
        status = executor.poll(handle)
        return status.state is JobState.PENDING and "earliest start" in str(status.reason)

    wait_for(explained, "the reason is known")
    executor.cancel(handle)
    assert _wait(executor, handle, 10.0).state is JobState.CANCELLED
    assert [job["state"] for job in plain_cluster.jobs() if job["id"] == handle.job_id] in ([], ["CANCELLED"])


def test_job_that_somebody_cancelled_is_lost(tmp_path: Path, cluster: SlurmCluster) -> None:
    """A cancellation that is not ours is named as such, with and without accounting."""
    executor = slurm_executor(tmp_path, extra={"begin": "now+1hour"})
    handle = executor.submit(fresh_request(tmp_path / "t", "normal"))
    cluster.run("scancel", handle.job_id)
    status = _wait(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.CANCELLED_OUTSIDE)
    assert status.scheduler is not None


def test_agent_that_cannot_start_is_lost_with_its_output(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A job whose agent fails before it claims the trial quotes what it wrote."""
    request = fresh_request(tmp_path / "t", "normal")
    (tmp_path / "t" / "spec.json").write_text("{}")
    executor = slurm_executor(tmp_path)
    status = _wait(executor, executor.submit(request))
    assert (status.state, status.loss) == (JobState.LOST, Loss.NEVER_STARTED)
    assert "missing keys: version" in str(status.reason)


def test_trial_that_ran_before_is_a_restart(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A job that finds its trial claimed runs nothing, and is told apart from a failure."""
    plan = fresh_trial(tmp_path / "t", "normal")
    write_json(tmp_path / "t" / "job.json", {"token": plan.token, "pid": 1})
    executor = slurm_executor(tmp_path)
    status = _wait(executor, executor.submit(request_of(plan)))
    assert (status.state, status.loss) == (JobState.LOST, Loss.RESTARTED)
    assert not list((tmp_path / "t").glob("updates-*"))


def test_killed_agent_ends_the_job_and_is_lost(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """SIGKILL of the agent ends the job; cancel afterwards is harmless."""
    plan = fresh_trial(tmp_path / "t", "describe", ranks=2)
    executor = slurm_executor(tmp_path)
    handle = executor.submit(request_of(plan))
    _facts(plan)
    os.kill(read_json(tmp_path / "t" / "job.json")["pid"], signal.SIGKILL)
    status = _wait(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.AGENT_DIED)
    executor.cancel(handle)
    wait_for(lambda: no_process_left(plan), "the ranks are gone")


def test_cancel_ends_a_job_whose_agent_is_stuck(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """An agent that no longer reacts is ended by Slurm."""
    plan = fresh_trial(tmp_path / "t", "describe")
    executor = slurm_executor(tmp_path)
    handle = executor.submit(request_of(plan))
    _facts(plan)
    os.kill(read_json(tmp_path / "t" / "job.json")["pid"], signal.SIGSTOP)
    executor.cancel(handle, wait_s=0.5)
    assert _wait(executor, handle).state is JobState.CANCELLED
    wait_for(lambda: no_process_left(plan), "the ranks are gone")


def test_only_our_own_jobs_are_cancelled(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A job id that by now belongs to a job of another name is left alone."""
    answer = plain_cluster.run("sbatch", "--parsable", "--mem=100", "--begin=now+1hour", "--wrap", "true")
    stranger = answer.stdout.strip()
    request = fresh_request(tmp_path / "t", "normal")
    handle = unrecorded(request).model_copy(update={"job_id": stranger})
    submission_file(handle).parent.mkdir()
    write_json(submission_file(handle), {"token": request.token, "intended_at": 0.0, "job_id": stranger})
    slurm_executor(tmp_path).cancel(handle)
    assert [job["state"] for job in plain_cluster.jobs() if job["id"] == stranger] == ["PENDING"]


@pytest.mark.parametrize(
    ("settings", "key"),
    [
        ({"partition": "nope"}, "slurm.partition"),
        ({"gpu_type": "b300"}, "allocation"),
        ({"gpu_request": "gpus-per-node", "gpu_type": "b300"}, "allocation"),
        ({"mem": "999G"}, "slurm.mem"),
        ({"extra": {"no-such-option": True}}, "slurm.extra"),
    ],
    ids=lambda value: json.dumps(value),
)
def test_refused_request_names_the_key(
    tmp_path: Path, plain_cluster: SlurmCluster, settings: dict[str, Any], key: str
) -> None:
    """Slurm's own words and the key that asks for it; nothing is queued, as a new engine knows."""
    request = fresh_request(tmp_path / "t", "normal")
    executor = slurm_executor(tmp_path, **settings)
    with pytest.raises(TaskFileError, match="Slurm refused the job: ") as caught:
        executor.submit(request)
    assert caught.value.key == key
    assert caught.value.hint
    name = f"infrarsi-{request.token[:12]}"
    assert {job["state"] for job in plain_cluster.jobs() if job["name"] == name} <= {"FAILED"}
    status = slurm_executor(tmp_path).poll(unrecorded(request))
    assert (status.state, status.loss) == (JobState.LOST, Loss.NEVER_STARTED)
    assert caught.value.message in str(status.reason)


def test_job_that_can_never_start_is_given_up(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """Sites that queue impossible requests would hold a study for ever: it is lost, and leaves the queue."""
    executor = slurm_executor(tmp_path)
    handle = executor.submit(fresh_request(tmp_path / "t", "normal", nodes=3))
    status = _wait(executor, handle)
    assert (status.state, status.loss) == (JobState.LOST, Loss.NEVER_STARTED)
    assert "will not start" in str(status.reason)
    executor.cancel(handle)
    assert {job["state"] for job in plain_cluster.jobs() if job["id"] == handle.job_id} <= {"CANCELLED"}


def test_nodes_that_cannot_be_spared_are_used(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """Distrusted nodes are left out where others are enough; else the trial runs on them, with a note."""
    notes: list[str] = []
    spared = fresh_request(tmp_path / "a", "normal").model_copy(update={"exclude": ("n1",)})
    needed = fresh_request(tmp_path / "b", "normal").model_copy(update={"exclude": ("n1", "n2")})
    executor = slurm_executor(tmp_path, notify=notes.append)
    first = _wait(executor, executor.submit(spared))
    assert first.state is JobState.FINISHED
    assert read_json(tmp_path / "a" / "result.json")["nodes"][0]["name"] == "n2"
    assert notes == []
    handle = executor.submit(needed)
    assert "n1, n2" in notes[0]
    assert _wait(executor, handle).state is JobState.FINISHED
    assert _names(plain_cluster).count(f"infrarsi-{needed.token[:12]}") == 2  # the refused one is remembered


def test_refused_job_is_not_taken_for_the_real_one(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A refusal leaves a failed job of the same name behind; the job that was queued later is the one."""
    request = fresh_request(tmp_path / "t", "normal")
    name = f"infrarsi-{request.token[:12]}"
    plain_cluster.run("sbatch", f"--job-name={name}", "--gres=gpu:99", "--wrap", "true")
    wait_for(lambda: name in _names(plain_cluster), "the refused job is on record")
    handle = slurm_executor(tmp_path).submit(request)
    record = read_json(submission_file(handle))
    write_json(submission_file(handle), record | {"job_id": None})
    assert _wait(slurm_executor(tmp_path), unrecorded(request)).state is JobState.FINISHED


def test_e16_submission_from_inside_a_job(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """An engine in a small allocation with pinned cores gets jobs as large as any other engine's."""
    plan = fresh_trial(tmp_path / "t", "normal", ranks=2, cpus_per_rank=2)
    (tmp_path / "request.json").write_text(request_of(plan).model_dump_json())
    outer = ["srun", "--ntasks=1", "--cpus-per-task=1", "--mem=500M", "--cpu-bind=cores", "--gres=gpu:1"]
    done = plain_cluster.run(*outer, sys.executable, str(NESTED), str(tmp_path), timeout_s=90.0)
    assert done.returncode == 0, done.stderr
    handle = JobHandle.model_validate_json((tmp_path / "handle.json").read_text())
    assert "CPUs/Task=4" in plain_cluster.run("scontrol", "show", "job", handle.job_id).stdout
    assert _wait(slurm_executor(tmp_path), handle).state is JobState.FINISHED


@pytest.mark.parametrize("name", ["with space", "quo'te\"s", "$(touch x);&", "ünï-日本", "-x"])
def test_odd_paths_work(tmp_path: Path, plain_cluster: SlurmCluster, name: str) -> None:
    """A study may be called anything but what sbatch itself would rewrite."""
    (tmp_path / name).mkdir()
    executor = slurm_executor(tmp_path / name)
    handle = executor.submit(fresh_request(tmp_path / name / "t", "normal"))
    assert _wait(executor, handle).state is JobState.FINISHED


@pytest.mark.parametrize("name", ["x%jy", "100%", "back\\slash", "new\nline"])
def test_paths_that_slurm_would_rewrite_are_refused(
    tmp_path: Path, plain_cluster: SlurmCluster, name: str
) -> None:
    """The error says which rule the path breaks, before anything is written."""
    request = fresh_request(tmp_path / name, "normal")
    with pytest.raises(InfrastructureError, match="no %, no backslash"):
        slurm_executor(tmp_path).submit(request)


def test_missing_slurm_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sbatch on PATH nothing is written and the next step is named."""
    request = fresh_request(tmp_path / "t", "normal")
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InfrastructureError, match="not on PATH"):
        slurm_executor(tmp_path).submit(request)
    assert not (tmp_path / "t" / "submitit").exists()


def test_calls_are_on_record(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """Every call of a scheduler's program is in scheduler.jsonl; none of them is sacct through submitit."""
    executor = slurm_executor(tmp_path)
    handle = executor.submit(fresh_request(tmp_path / "t", "normal"))
    _wait(executor, handle)
    lines = [json.loads(line) for line in (tmp_path / "scheduler.jsonl").read_text().splitlines()]
    assert lines[0]["argv"][0] == "sbatch"
    assert len(lines) < 6
