"""The training without torch is as good as a real one for everything around it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.schema.plan import LaunchPlan
from engine.task.load import load_task
from tests.slurm.trial_folder import make_trial, no_process_left, read_json, records_of, wait_for
from tests.slurm_cluster.projects import HERE, TASKS, copy_project, order, release

_ROOT = HERE.parents[1]
_ENVIRONMENT = {"PYTHONPATH": str(_ROOT), "PATH": "/usr/bin:/bin"}
_LAUNCH = [
    "launch.py",
    *("--node-rank", "{node_rank}", "--master-addr", "{master_addr}", "--master-port", "{master_port}"),
]


def _trial(folder: Path, ranks: int = 3, **config: Any) -> LaunchPlan:
    """A trial folder whose work folder holds the payload."""
    plan = make_trial(
        folder,
        "",
        ranks=ranks,
        command=[*_LAUNCH, "--nproc", str(ranks), "--output", str(folder)],
        update_timeout_s=3.0,
    )
    (folder / "work").rmdir()
    copy_project(folder / "work", "local", **config)
    return plan


def _start(plan: LaunchPlan) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "slurm.agent", f"{plan.trial_dir}/spec.json"]
    return subprocess.Popen(command, cwd=_ROOT, env=_ENVIRONMENT)


def _run(plan: LaunchPlan) -> dict[str, Any]:
    """Run a trial under the real agent; result.json."""
    assert _start(plan).wait(timeout=60) == 0
    assert no_process_left(plan)
    result = read_json(Path(plan.trial_dir) / "result.json")
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize("name", sorted(TASKS.values()))
def test_tasks_are_valid(name: str) -> None:
    """Every task file of the project is accepted, without a warning."""
    assert load_task(HERE / "project" / name).warnings == ()


def test_ranks_end_well(tmp_path: Path) -> None:
    """Every rank makes its updates and ends by itself, and the agent finds nothing wrong with its records."""
    result = _run(_trial(tmp_path / "t1"))
    assert (result["ended"], result["exit_code"]) == ("exited", 0)
    for rank in result["ranks"]:
        assert (rank["updates"], rank["end"]) == (5, True)
        assert rank["protocol_errors"] == []


def test_step_time_follows_the_configuration(tmp_path: Path) -> None:
    """Settings that are faster are faster by what the landscape says, to a few percent."""
    lengths = []
    faster: dict[str, Any] = {"train__micro_batch": 4, "train__recompute": "none"}
    for name, config in (("slow", {}), ("fast", faster)):
        result = _run(_trial(tmp_path / name, pace__step_ms=100, **config))
        lengths.append(result["ranks"][0]["window"]["elapsed_ns"])
    assert lengths[0] / lengths[1] == pytest.approx(1.6, rel=0.1)


def test_settings_that_do_not_fit(tmp_path: Path) -> None:
    """Too large a configuration is refused by the allocator, one combination by the code."""
    large: dict[str, Any] = {"train__micro_batch": 8, "train__recompute": "none"}
    plan = _trial(tmp_path / "large", **large)
    spec = Path(plan.trial_dir) / "spec.json"
    spec.write_text(json.dumps({**read_json(spec), "memory_limit_bytes": 2 << 30}))
    result = _run(plan)
    assert "you tried to allocate" in result["ranks"][0]["exception"]["message"]
    result = _run(_trial(tmp_path / "conflict", model__attention="flex", data__workers=2))
    assert "ValueError" in {(rank["exception"] or {}).get("type") for rank in result["ranks"]}


def test_rank_that_raises(tmp_path: Path) -> None:
    """An exception of one rank is recorded, and the launcher ends the others."""
    result = _run(_trial(tmp_path / "t1", drill__mode="raise"))
    assert (result["ended"], result["exit_code"]) == ("exited", 1)
    assert [rank["exception"] is not None for rank in result["ranks"]] == [False, True, False]


@pytest.mark.parametrize(("mode", "code"), [("exit", 3), ("kill", -9)])
def test_rank_that_dies(tmp_path: Path, mode: str, code: int) -> None:
    """Of a rank that goes without a word the launcher tells the exit code."""
    result = _run(_trial(tmp_path / "t1", drill__mode=mode))
    assert result["exit_code"] == 1
    assert f"failed (exitcode: {code}) local_rank: 1 " in (tmp_path / "t1" / "launcher.log").read_text()
    assert result["ranks"][1]["exception"] is None


def test_rank_that_hangs(tmp_path: Path) -> None:
    """One rank that hangs stops them all, and the agent ends them."""
    result = _run(_trial(tmp_path / "t1", drill__mode="hang"))
    assert result["ended"] == "update_timeout"
    assert {rank["updates"] for rank in result["ranks"]} == {2}


def test_rank_that_waits(tmp_path: Path) -> None:
    """A test can hold a run before an update that it chooses, and let it go on."""
    orders = tmp_path / "orders"
    orders.mkdir()
    plan = _trial(tmp_path / "t1", drill__folder=str(orders))
    order(orders, "wait", rank=1, update=1)
    process = _start(plan)
    wait_for((orders / "waiting-1").exists, "rank 1 waits")
    assert not (orders / "order.json").exists()
    assert len([line for line in records_of(tmp_path / "t1", 1) if line["k"] == "update"]) == 1
    release(orders)
    assert process.wait(timeout=30) == 0
    assert read_json(tmp_path / "t1" / "result.json")["exit_code"] == 0


@pytest.mark.slow
def test_study_passes(tmp_path: Path) -> None:
    """A whole study on this machine finds a verified speed-up, by invariants that passed or say why not."""
    project = copy_project(tmp_path / "project", "local")
    command = [sys.executable, "-P", "-m", "infrarsi_tui.main", "run", str(project), "--out"]
    answer = subprocess.run(
        [*command, str(tmp_path / "study")],
        cwd=_ROOT,
        env=_ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    report = read_json(tmp_path / "study" / "report.json")
    assert report["best"]["verified"]
    invariants = report["verification"][0]["invariants"]
    assert len(invariants) == 16
    assert all(
        each["status"] == "passed" or (each["status"] == "skipped" and each["reason"]) for each in invariants
    )
