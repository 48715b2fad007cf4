"""Ranks that srun starts: on a real Slurm with pretended nodes, and who may register."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.schema.plan import LaunchPlan
from slurm.agent.listener import remove_socket_folders
from slurm.agent.procfs import read_stat
from slurm.agent.step_tasks import StepTasks
from tests.slurm.trial_folder import (
    PAYLOADS,
    make_trial,
    no_process_left,
    read_json,
    wait_for,
)
from tests.slurm_cluster.cluster import SlurmCluster

_RANKS = 8


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Any]:
    """A function that starts a program of a given name with one child, and returns the child's process id."""
    started: list[subprocess.Popen[str]] = []

    def starter(name: str) -> int:
        program = tmp_path / name
        program.write_text("#!/bin/sh\nsleep 60 &\necho $!\nwait\n")
        program.chmod(0o755)
        process = subprocess.Popen([program], stdout=subprocess.PIPE, text=True, start_new_session=True)
        started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    yield starter
    for process in started:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_only_children_of_the_step_daemon_register(daemon: Any) -> None:
    """A process whose parent is no slurmstepd is refused, whatever it says; so is this process's own."""
    tasks = StepTasks(range(8, 10))
    user = os.getuid()
    refused = tasks.register(daemon("impostor"), user, {"rank": 8})
    assert refused is not None
    assert "(impostor), is no slurmstepd" in refused
    assert tasks.register(os.getpid(), user, {"rank": 8}) is not None
    assert tasks.missing == [8, 9]


@pytest.mark.skipif(os.geteuid() != 0, reason="the step daemon belongs to root")
def test_each_rank_registers_once_and_brings_its_descendants(daemon: Any) -> None:
    """Another rank, another user and a second registration are refused; what is below a task is ours."""
    tasks = StepTasks(range(8, 10))
    user = os.getuid()
    first, second = daemon("slurmstepd"), daemon("slurmstepd")
    assert "awaited" in str(tasks.register(first, user, {"rank": 7}))
    assert "awaited" in str(tasks.register(first, user, {"rank": True}))
    assert "user" in str(tasks.register(first, user + 1, {"rank": 8}))
    assert tasks.register(first, user, {"rank": 8}) is None
    assert "awaited" in str(tasks.register(second, user, {"rank": 8}))
    assert not tasks.owns(second)
    assert not tasks.complete
    assert tasks.register(second, user, {"rank": 9}) is None
    assert tasks.complete
    assert tasks.owns(first)
    assert not tasks.owns(os.getpid())
    assert sorted(tasks.roots()) == sorted([first, second])


class Step:
    """The agents of a trial as one task on each node of a real allocation."""

    def __init__(self, cluster: SlurmCluster, plan: LaunchPlan, *options: str) -> None:
        self.plan = plan
        self.folder = Path(plan.trial_dir)
        shape = [f"--nodes={plan.nodes}", "--ntasks-per-node=1", f"--cpus-per-task={_RANKS}"]
        safety = ["--kill-on-bad-exit=1", "--wait=60", "--job-name=agent-test"]
        agent = [sys.executable, "-P", "-m", "slurm.agent", str(self.folder / "spec.json")]
        self.process = subprocess.Popen(
            ["srun", *shape, *safety, *options, *agent],
            env=cluster.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def result(self, code: int | None = 0) -> dict[str, Any]:
        """The content of result.json, when the step has ended with this code (None: any)."""
        words, _ = self.process.communicate(timeout=90)
        assert code is None or self.process.returncode == code, words
        wait_for(lambda: no_process_left(self.plan), "nothing is left")
        result: dict[str, Any] = read_json(self.folder / "result.json")
        return result

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            self.process.send_signal(signal.SIGINT)
            self.process.communicate(timeout=30)
        remove_socket_folders(self.plan.trial_dir)


@pytest.fixture
def submit(plain_cluster: SlurmCluster) -> Iterator[Any]:
    """A function that runs a trial's agents on the cluster."""
    steps: list[Step] = []

    def starter(plan: LaunchPlan, *options: str) -> Step:
        steps.append(Step(plain_cluster, plan, *options))
        return steps[-1]

    yield starter
    for step in steps:
        step.close()


def _wide(folder: Path, mode: str, nodes: int, **overrides: Any) -> LaunchPlan:
    command = [str(PAYLOADS / "trainer.py"), mode, str(folder / "output")]
    wanted = {"launcher": "srun", "nodes": nodes, "command": command, "update_timeout_s": 60.0}
    return make_trial(folder, mode, ranks=_RANKS, **{**wanted, **overrides})


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_task_is_a_rank(tmp_path: Path, submit: Any, nodes: int) -> None:
    """One step starts all ranks; each node's agent hears its own, and one result holds them all."""
    folder = tmp_path / "t"
    plan = _wide(folder, "normal", nodes, setup=["export SET=up"], memory_limit_bytes=3 << 30)
    result = submit(plan).result()
    assert (result["ended"], result["exit_code"], result["launch_error"]) == ("exited", 0, None)
    assert [rank["rank"] for rank in result["ranks"]] == list(range(nodes * _RANKS))
    for rank in result["ranks"]:
        assert (rank["updates"], rank["end"], rank["protocol_errors"]) == (5, True, [])
        assert rank["node"] == rank["rank"] // _RANKS
        assert rank["limit_seen_bytes"] == 3 << 30
    assert [node["name"] for node in result["nodes"]] == ["n1", "n2"][:nodes]
    assert all(node["reported"] for node in result["nodes"])
    assert result["slurm"]["restarts"] == 0


def test_a_task_sees_its_rank_and_its_step(tmp_path: Path, submit: Any) -> None:
    """A rank gets Slurm's variables of its own task beside ours, and none of the agent's step."""
    folder = tmp_path / "t"
    step = submit(_wide(folder, "describe", 1, env={"MINE": "1"}), "--gpus-per-node=8")
    wait_for((folder / "output" / "facts.json").exists, "training started", 60.0)
    environ = read_json(folder / "output" / "facts.json")["environ"]
    (folder / "output" / "release").touch()
    assert step.result()["ended"] == "exited"
    assert environ["RANK"] == environ["SLURM_PROCID"]
    assert environ["LOCAL_RANK"] == environ["SLURM_LOCALID"]
    assert (environ["WORLD_SIZE"], environ["SLURM_NTASKS"], environ["LOCAL_WORLD_SIZE"]) == ("8", "8", "8")
    assert environ["CUDA_VISIBLE_DEVICES"] == "0,1,2,3,4,5,6,7"
    assert (environ["MASTER_ADDR"], environ["MINE"]) == ("127.0.0.1", "1")
    assert int(environ["MASTER_PORT"]) < 32768
    assert "INFRARSI_SHIM" not in environ
    assert "PYTHONSAFEPATH" not in environ


def test_a_crash_of_one_task_ends_all(tmp_path: Path, submit: Any) -> None:
    """The last rank of the second node raises: everything is over within seconds."""
    result = submit(_wide(tmp_path / "t", "crash", 2)).result()
    assert result["ended"] == "exited"
    assert result["exit_code"] != 0
    assert result["wall_s"] < 40
    assert [rank["rank"] for rank in result["ranks"] if rank["exception"]] == [15]


def test_a_task_that_cannot_start_ends_all(tmp_path: Path, submit: Any) -> None:
    """A program that is not there is the launcher's failure, with its words in the log."""
    folder = tmp_path / "t"
    result = submit(_wide(folder, "-", 2, command=["/no/such/program"])).result()
    assert (result["ended"], result["exit_code"]) == ("exited", 97)
    assert "cannot start '/no/such/program'" in (folder / "launcher.log").read_text()


def test_a_lost_agent_is_not_a_cancelled_trial(tmp_path: Path, submit: Any) -> None:
    """Slurm ends the head's agent because node 1's was killed: still a lost node, and nothing is left."""
    folder = tmp_path / "t"
    step = submit(_wide(folder, "describe", 2))
    wait_for((folder / "updates-15.jsonl").exists, "training started", 60.0)
    os.kill(read_json(folder / "node-1.json")["pid"], signal.SIGKILL)
    result = step.result(code=None)
    assert (result["ended"], result["nodes"][1]["reported"]) == ("node_lost", False)
    for rank in result["ranks"]:
        stat = read_stat(rank["pid"]) if rank["pid"] else None
        assert stat is None or not stat.alive


def test_cancel_ends_the_step(tmp_path: Path, submit: Any) -> None:
    """The file `cancel` ends the tasks on all nodes in order."""
    folder = tmp_path / "t"
    step = submit(_wide(folder, "describe", 2))
    wait_for((folder / "updates-15.jsonl").exists, "training started", 60.0)
    (folder / "cancel").touch()
    result = step.result()
    assert result["ended"] == "cancelled"
    assert all(node["reported"] for node in result["nodes"])


def test_a_job_without_gpus_is_told_so(tmp_path: Path, submit: Any) -> None:
    """GPU ranks on a job that asked for none: said before anything starts."""
    plan = _wide(tmp_path / "t", "normal", 1, device="cuda")
    result = submit(plan).result()
    assert result["ended"] == "preflight_failed"
    assert "no GPU was requested or allocated" in result["launch_error"]


def test_devices_of_the_allocation_are_counted(tmp_path: Path, submit: Any) -> None:
    """Four GPUs for eight ranks a node: said for both nodes at once."""
    result = submit(_wide(tmp_path / "t", "normal", 2, device="cuda"), "--gpus-per-node=4").result()
    assert result["ended"] == "preflight_failed"
    assert result["launch_error"].startswith("node 0 (n1), node 1 (n2): 4 GPUs are visible")
    assert [node["devices"] for node in result["nodes"]] == [4, 4]
