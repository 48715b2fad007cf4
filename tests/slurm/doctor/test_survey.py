"""The survey as a whole, on a real Slurm and on stand-ins for a broken one."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.doctor.check import ASK_A_NODE, Check
from slurm.doctor.cluster import memory_of_jobs_check
from slurm.doctor.on_node import node_checks
from slurm.doctor.survey import Survey, cluster_checks, settled, survey
from slurm.scheduler.capabilities import Capabilities
from slurm.scheduler.command import SlurmCommands
from tests.slurm.unattended.engine_jobs import programs
from tests.slurm_cluster.cluster import SlurmCluster


def _by_name(found: Survey) -> dict[str, Check]:
    names = [check.name for check in found.checks]
    assert len(names) == len(set(names))
    return {check.name: check for check in found.checks}


def _jobs_of_doctor(cluster: SlurmCluster) -> list[str]:
    """States of the jobs that a survey submitted; the cluster remembers those of other tests too."""
    return [job["state"] for job in cluster.jobs() if job["name"].startswith("infrarsi-doctor")]


def test_a_cluster_is_described(tmp_path: Path, cluster: SlurmCluster) -> None:
    """Release, nodes, GPUs, accounting and the lines of [slurm] are the cluster's; nothing is queued."""
    before = [job["id"] for job in cluster.jobs()]
    found = survey(tmp_path / "studies", None)
    checks = _by_name(found)
    assert "22.05.8" in checks["slurm_version"].found
    assert "2 nodes, GPUs h100:8" in checks["partitions"].found
    assert checks["accounting"].status == ("ok" if cluster.accounting else "warn")
    assert checks["gpu_request"].status == "ok"
    assert "--gpus-per-node=h100:8 works" in checks["gpu_request"].found
    assert found.slurm_section == {"partition": "gpu", "gpu_request": "gres"}
    assert not found.failed, [check for check in found.checks if check.status == "fail"]
    assert {job["id"] for job in cluster.jobs()} <= set(before)


def test_a_wrong_partition_fails(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A partition that is not there is a failure that lists those that are."""
    checks, section = cluster_checks(SlurmCommands(), "nowhere")
    failed = [check for check in checks if check.status == "fail"]
    assert [check.name for check in failed] == ["partitions"]
    assert "gpu (default)" in failed[0].found
    assert section == {}


@pytest.mark.slow
def test_a_node_is_looked_at(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """One job repeats the checks on a node, measures how late it sees changes, and is gone afterwards."""
    found = survey(tmp_path, None, on_node=True, wait_s=90.0)
    checks = _by_name(found)
    assert checks["node/delay"].status == "ok", checks["node/delay"]
    assert checks["node/rename"].status == "ok"
    assert {"node/landlock", "node/gpu", "node/internet", "node/space"} <= set(checks)
    assert checks["node/git"].group == "node n1"
    assert not checks["file_system"].hint.startswith(ASK_A_NODE)
    assert set(_jobs_of_doctor(plain_cluster)) <= {"COMPLETED", "CANCELLED", "COMPLETING"}
    assert list(tmp_path.iterdir()) == []


def test_a_node_job_that_waits_is_cancelled(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A job that does not start in time is taken back and told as a drawback with Slurm's reason."""
    for name in ("n1", "n2"):
        plain_cluster.run("scontrol", "update", f"nodename={name}", "state=drain", "reason=test")
    try:
        checks = node_checks(SlurmCommands(), tmp_path, None, internet=False, wait_s=3.0)
    finally:
        for name in ("n1", "n2"):
            plain_cluster.run("scontrol", "update", f"nodename={name}", "state=resume")
    assert [check.status for check in checks] == ["warn"], checks
    assert "cancelled" in checks[0].found
    assert "CANCELLED" in _jobs_of_doctor(plain_cluster)
    assert not {"PENDING", "RUNNING"}.intersection(_jobs_of_doctor(plain_cluster))


def test_a_controller_that_is_away(tmp_path: Path, plain_cluster: SlurmCluster) -> None:
    """A Slurm without its controller is broken: a failure, after seconds."""
    plain_cluster.kill_controller()
    checks, section = cluster_checks(SlurmCommands(timeout_s=5.0), None)
    assert (checks[0].name, checks[0].status) == ("slurm_version", "fail")
    assert section == {}


def test_half_a_slurm_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the programs and not others: a failure that names the missing ones."""
    monkeypatch.setenv("PATH", str(programs(tmp_path / "bin", squeue="exit 0", sbatch="exit 0")))
    found = survey(tmp_path, None)
    assert found.failed
    assert "scontrol" in _by_name(found)["slurm_commands"].found


def test_programs_that_hang_hang_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each question has its time limit; without answers the controller counts as away."""
    names = ("squeue", "sbatch", "scontrol", "scancel", "srun", "sinfo")
    slow = programs(tmp_path / "bin", **dict.fromkeys(names, "exec sleep 600"))
    monkeypatch.setenv("PATH", f"{slow}:/usr/bin:/bin")
    checks, _ = cluster_checks(SlurmCommands(timeout_s=0.5), None)
    assert checks[0].status == "fail"
    assert "timed out" in checks[0].found


def test_pace_and_memory_of_the_controller() -> None:
    """Without accounting an ended job must be remembered for a few rounds of questions."""
    assert memory_of_jobs_check(Capabilities(min_job_age_s=300), 10.0).status == "ok"
    assert memory_of_jobs_check(Capabilities(min_job_age_s=10), 10.0).status == "warn"
    assert memory_of_jobs_check(Capabilities(min_job_age_s=10, accounting=True), 10.0).status == "ok"
    assert memory_of_jobs_check(Capabilities(), 10.0).status == "skipped"


def test_a_node_settles_doubts() -> None:
    """What only a node can tell is no drawback any more once a node has told it."""
    doubt = Check("python", "machine", "warn", "3.11", "may not be theirs", f"{ASK_A_NODE}; else install")
    other = Check("landlock", "machine", "warn", "none")
    seen = Check("node/delay", "node n1", "ok", "3 ms")
    assert [check.status for check in settled([doubt, other], [seen])] == ["ok", "warn"]
    assert settled([doubt], []) == [doubt]
