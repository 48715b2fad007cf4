"""Who this node is, and what is found out before anything is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slurm.agent.node import NodeIdentity, host_names, identify
from slurm.agent.plan import LaunchPlan, load_plan
from slurm.agent.preflight import examine, visible_devices
from tests.slurm.agents import step_environment
from tests.slurm.trial_folder import make_trial


def _plan(tmp_path: Path, **overrides: Any) -> LaunchPlan:
    make_trial(tmp_path / "t", "normal", **overrides)
    return load_plan(tmp_path / "t" / "spec.json")


def _program(folder: Path, name: str, text: str) -> dict[str, str]:
    """An environment whose PATH holds one program that prints something."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\nprintf '{text}'\n")
    (folder / name).chmod(0o755)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


def test_without_a_scheduler_there_is_one_node() -> None:
    """A shell gives no node rank, whatever else it sets."""
    node = identify({"SLURM_JOB_ID": "5", "SLURM_NNODES": "4"})
    assert (node.rank, node.count, node.is_scheduled, node.slurm()) == (0, 1, False, None)


def test_identity_is_the_steps() -> None:
    """The step's own numbers win over the job's."""
    environ = step_environment(1, 2, SLURM_NNODES="8", SLURM_RESTART_COUNT="1")
    node = identify(environ)
    assert (node.rank, node.count, node.tasks, node.suffix) == (1, 2, 2, "-1")
    assert node.name == "fake1.invalid"
    assert node.slurm() == {"job_id": "4711", "step_id": "3", "restarts": 1}
    batch = identify({"SLURM_NODEID": "0", "SLURM_NNODES": "2", "SLURM_JOB_ID": "5", "SLURM_NTASKS": "16"})
    assert (batch.count, batch.tasks) == (2, None)


@pytest.mark.parametrize(
    ("nodelist", "names"),
    [
        ("n1", ["n1"]),
        ("nodeA,nodeB[001,003],nodeC", ["nodeA", "nodeB001", "nodeB003", "nodeC"]),
        ("node[08-11]", ["node08", "node09", "node10", "node11"]),
        ("rack[0-1]_b[1-2]", ["rack0_b1", "rack0_b2", "rack1_b1", "rack1_b2"]),
        ("b04-[09-10].x", ["b04-09.x", "b04-10.x"]),
        ("", []),
    ],
)
def test_node_lists_are_expanded(nodelist: str, names: list[str]) -> None:
    """Every shape of a node list gives its names in order."""
    assert host_names(nodelist) == names


@pytest.mark.parametrize(
    ("mask", "listed", "count"),
    [
        ("0,1,2,3", None, 4),
        ("", None, 0),
        ("NoDevFiles", None, 0),
        ("0,1,2,3", 2, 2),
        ("0,1", 8, 2),
        (None, 8, 8),
        (None, 0, 0),
        ("MIG-a,MIG-b", 1, 2),
        (None, None, 0),
    ],
)
def test_devices_are_counted(tmp_path: Path, mask: str | None, listed: int | None, count: int) -> None:
    """The mask counts, and what the driver lists; the smaller of both, except for parts of a GPU."""
    environ = {"PATH": "/nowhere"}
    if listed is not None:
        lines = "".join(f"GPU {index}: H100 (UUID: x)\\n" for index in range(listed))
        environ = _program(tmp_path / "bin", "nvidia-smi", lines)
    if mask is not None:
        environ["CUDA_VISIBLE_DEVICES"] = mask
    assert visible_devices(environ) == count


def test_no_gpu_is_said_in_words(tmp_path: Path) -> None:
    """A job without GPUs is told so before torch finds out."""
    plan = _plan(tmp_path, device="cuda")
    found = examine(plan, identify(step_environment(0, 1)), {"PATH": "/nowhere"})
    assert found.devices == 0
    assert "no GPU was requested or allocated" in found.errors[0]
    assert "gpus_per_node" in found.errors[0]


def test_too_few_gpus_are_an_error(tmp_path: Path) -> None:
    """Each rank needs a device of its own."""
    plan = _plan(tmp_path, device="cuda", ranks=8)
    found = examine(plan, identify(step_environment(0, 1)), {"PATH": "/x", "CUDA_VISIBLE_DEVICES": "4,5"})
    assert found.errors == ["2 GPUs are visible, 8 ranks need one each on this node"]


def test_too_few_cpus_are_a_note(tmp_path: Path) -> None:
    """An over-subscribed machine must still run."""
    found = examine(_plan(tmp_path, cpus_per_rank=4000), identify({}), {})
    assert found.errors == []
    assert "4000" in found.notes[0]


def test_a_folder_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """A node that does not share the trial folder is found before the launch."""
    plan = _plan(tmp_path, trial_dir="/proc/nowhere")
    found = examine(plan, NodeIdentity(0, 1, "n", "n"), {})
    assert "/proc/nowhere: cannot be written from this node" in found.errors[0]


def test_nothing_is_left_in_the_folder(tmp_path: Path) -> None:
    """The examination removes what it wrote."""
    plan = _plan(tmp_path)
    before = sorted(plan.folder.iterdir())
    assert examine(plan, identify({}), {}).errors == []
    assert sorted(plan.folder.iterdir()) == before
