"""The cluster of the tests is a real Slurm, in both flavours, and leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slurm.trial_folder import wait_for
from tests.slurm_cluster.cluster import SlurmCluster
from tests.slurm_cluster.fixtures import short_folder
from tests.slurm_cluster.sweep import processes_of

pytestmark = pytest.mark.slurm

_ALL_GPUS = "0,1,2,3,4,5,6,7"


def _submit(cluster: SlurmCluster, folder: Path, script: str, *options: str) -> str:
    """Submit a batch script that writes to `<folder>/out`; the job's id."""
    path = folder / "job.sh"
    path.write_text(f"#!/bin/sh\n{script}\n")
    answer = cluster.run("sbatch", "--parsable", f"--output={folder}/out", *options, str(path))
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.strip()


def _state(cluster: SlurmCluster, job: str) -> str:
    return next((row["state"] for row in cluster.jobs() if row["id"] == job), "absent")


def _wait_for_state(cluster: SlurmCluster, job: str, state: str) -> None:
    wait_for(lambda: _state(cluster, job) == state, f"job {job} is {state}", 60.0)


def _shown(cluster: SlurmCluster, job: str) -> dict[str, str]:
    text = cluster.run("scontrol", "-o", "show", "job", job).stdout
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


@pytest.mark.parametrize("nodes", [1, 2])
def test_job_sees_its_gpus(plain_cluster: SlurmCluster, nodes: int) -> None:
    """A job on one or two nodes is given eight GPUs on each, by either kind of request."""
    for request in ("--gres=gpu:h100:8", "--gpus-per-node=8"):
        show = "echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES"
        answer = plain_cluster.run("srun", f"--nodes={nodes}", request, "sh", "-c", show)
        lines = [line.split() for line in answer.stdout.splitlines()]
        assert [gpus for _, gpus in lines] == [_ALL_GPUS] * nodes, answer.stderr
        assert len({node for node, _ in lines}) == nodes


def test_wrong_gpu_type_is_refused(plain_cluster: SlurmCluster) -> None:
    """GPUs are typed: a kind that no node has is refused at once."""
    answer = plain_cluster.run("srun", "--gres=gpu:a100:8", "true")
    assert answer.returncode
    assert "Requested node configuration is not available" in answer.stderr


def test_accounting_answers(accounting_cluster: SlurmCluster, tmp_path: Path) -> None:
    """With accounting, `sacct` knows an ended job."""
    job = _submit(accounting_cluster, tmp_path, "true")

    def recorded() -> bool:
        answer = accounting_cluster.run("sacct", "-X", "-n", "-P", "-j", job, "-o", "JobIDRaw,State")
        return answer.stdout.strip() == f"{job}|COMPLETED"

    wait_for(recorded, "sacct shows the job", 60.0)


def test_without_accounting(plain_cluster: SlurmCluster) -> None:
    """Without accounting, `sacct` says so and fails."""
    answer = plain_cluster.run("sacct", "-X")
    assert answer.returncode
    assert "disabled" in answer.stderr


def test_accounting_outage(accounting_cluster: SlurmCluster, tmp_path: Path) -> None:
    """While slurmdbd is away, `sacct` fails and jobs run; afterwards their records are there."""
    accounting_cluster.kill_accounting()
    assert accounting_cluster.run("sacct", "-X").returncode
    job = _submit(accounting_cluster, tmp_path, "true")
    _wait_for_state(accounting_cluster, job, "COMPLETED")
    accounting_cluster.start_accounting()
    wait_for(
        lambda: "COMPLETED" in accounting_cluster.run("sacct", "-X", "-n", "-j", job, "-o", "State").stdout,
        "the record arrives",
        60.0,
    )


@pytest.mark.slow
def test_controller_comes_back(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job runs on while the controller is dead, and the new controller knows it."""
    job = _submit(cluster, tmp_path, f"while [ ! -e {tmp_path}/go ]; do sleep 0.1; done")
    _wait_for_state(cluster, job, "RUNNING")
    cluster.kill_controller()
    assert cluster.run("squeue").returncode
    cluster.start_controller()
    assert _state(cluster, job) == "RUNNING"
    (tmp_path / "go").touch()
    _wait_for_state(cluster, job, "COMPLETED")


def test_controller_hangs(plain_cluster: SlurmCluster) -> None:
    """A paused controller lets commands wait and fail; a continued one answers."""
    plain_cluster.pause_controller()
    with pytest.raises(subprocess.TimeoutExpired):
        plain_cluster.run("squeue", timeout_s=2.0)
    plain_cluster.continue_controller()
    assert plain_cluster.run("squeue").returncode == 0


def test_node_down_requeues(plain_cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job on a node that goes down is requeued under its id, and runs again."""
    job = _submit(plain_cluster, tmp_path, "echo again; sleep 600", "--requeue", "--nodelist=n2")
    _wait_for_state(plain_cluster, job, "RUNNING")
    plain_cluster.node_down("n2")
    wait_for(lambda: _shown(plain_cluster, job)["JobState"] == "PENDING", "the job waits again", 60.0)
    plain_cluster.node_up("n2")
    plain_cluster.wait_for_restart(job)
    assert _shown(plain_cluster, job)["Restarts"] == "1"


def test_node_down_ends_a_job_that_must_not_be_requeued(plain_cluster: SlurmCluster, tmp_path: Path) -> None:
    """With --no-requeue the same ends as NODE_FAIL."""
    job = _submit(plain_cluster, tmp_path, "sleep 600", "--no-requeue", "--nodelist=n2")
    _wait_for_state(plain_cluster, job, "RUNNING")
    plain_cluster.node_down("n2")
    _wait_for_state(plain_cluster, job, "NODE_FAIL")


def test_preemption_requeues(plain_cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job of the urgent partition takes the nodes; the other one waits again."""
    (tmp_path / "urgent").mkdir()
    job = _submit(plain_cluster, tmp_path, "sleep 600", "--nodes=2", "--exclusive", "--requeue")
    _wait_for_state(plain_cluster, job, "RUNNING")
    options = ("--partition=urgent", "--nodes=2", "--exclusive")
    urgent = _submit(plain_cluster, tmp_path / "urgent", "sleep 600", *options)
    _wait_for_state(plain_cluster, urgent, "RUNNING")
    assert _shown(plain_cluster, job)["JobState"] == "PENDING"
    plain_cluster.run("scancel", urgent)
    plain_cluster.wait_for_restart(job)
    assert _shown(plain_cluster, job)["Restarts"] == "1"


def test_memory_beyond_the_request(cluster: SlurmCluster, tmp_path: Path) -> None:
    """A job that takes more memory than it asked for is killed, and its output says why."""
    hog = f"exec {sys.executable} -c 'import time; held = bytearray(400 << 20); time.sleep(600)'"
    job = _submit(cluster, tmp_path, hog, "--mem=100")
    wait_for(lambda: _state(cluster, job) in ("FAILED", "OUT_OF_MEMORY"), "the job is killed", 60.0)
    assert "exceeded memory limit" in (tmp_path / "out").read_text()


def test_job_of_an_unprivileged_user(plain_cluster: SlurmCluster) -> None:
    """Jobs of an ordinary user run, too."""
    folder = short_folder()
    folder.chmod(0o777)
    answer = subprocess.run(
        ["srun", "--gres=gpu:8", "id", "-un"],
        env=plain_cluster.environment(),
        cwd=folder,
        user="nobody",
        group="nogroup",
        extra_groups=[],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    folder.rmdir()
    assert answer.stdout.strip() == "nobody", answer.stderr


@pytest.mark.slow
def test_node_without_power(cluster_factory: Callable[..., SlurmCluster], tmp_path: Path) -> None:
    """A node that vanishes with its jobs is noticed by the controller, and can come back."""
    cluster = cluster_factory(slurmd_timeout_s=5)
    job = _submit(cluster, tmp_path, "sleep 600", "--no-requeue", "--nodelist=n2")
    _wait_for_state(cluster, job, "RUNNING")
    cluster.kill_node("n2")
    assert cluster.processes("n2") == []
    _wait_for_state(cluster, job, "NODE_FAIL")
    cluster.start_node("n2")
    cluster.wait_for_nodes()


@pytest.mark.slow
def test_stop_leaves_nothing(tmp_path: Path) -> None:
    """After the end no daemon, no step daemon and no job is left, whatever the jobs did to stay."""
    cluster = SlurmCluster(short_folder(), accounting=True)
    cluster.start()
    job = _submit(cluster, tmp_path, "setsid sleep 700 & setsid nohup sleep 700 & sleep 700")
    _wait_for_state(cluster, job, "RUNNING")
    wait_for(lambda: len(cluster.processes()) >= 12, "seven daemons, the step daemon and four of the job run")
    cluster.stop()
    assert cluster.processes() == []
    assert not cluster.folder.exists()
    cluster.stop()


_ABANDON = """\
import os, signal, sys
from pathlib import Path
from tests.slurm_cluster.cluster import SlurmCluster
cluster = SlurmCluster(Path(sys.argv[1]), accounting=False)
cluster.start()
cluster.run("sbatch", "--output=/dev/null", "--wrap=sleep 700")
print(cluster.name, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["raise SystemExit(1)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_crashed_tests_leave_nothing(end: str) -> None:
    """A test process that ends without stopping its cluster, even by SIGKILL, leaves no process of it."""
    folder = short_folder()
    root = Path(__file__).parents[2]
    process = subprocess.run(
        [sys.executable, "-c", _ABANDON.format(end=end), str(folder)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode in (1, -signal.SIGKILL), process.stderr
    name = process.stdout.strip()
    wait_for(lambda: processes_of(name) == [], "everything is gone", 20.0)
    wait_for(lambda: not folder.exists(), "the folder is gone", 20.0)


def test_clusters_side_by_side(
    plain_cluster: SlurmCluster, cluster_factory: Callable[..., SlurmCluster]
) -> None:
    """Two clusters of one machine know nothing of each other, and the end of one leaves the other alone."""
    other = cluster_factory(nodes=1, gpus=2)
    assert other.run("srun", "sh", "-c", "echo $SLURM_CLUSTER_NAME").stdout.strip() == other.name
    other.stop()
    assert (
        plain_cluster.run("srun", "sh", "-c", "echo $SLURM_CLUSTER_NAME").stdout.strip() == plain_cluster.name
    )
