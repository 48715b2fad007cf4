"""When the probe acts, when it stays out of the way, and how it ends a run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine.probe.payload_files import payload_dir

Watch = Callable[..., Any]


def test_run_is_stopped_after_the_wanted_updates(watch: Watch) -> None:
    """After the last wanted update the rank signs, says so, and leaves its loop with status 0."""
    run = watch("train_tiny.py")
    assert run.returncode == 0
    assert "finished" not in run.output
    assert [r["k"] for r in run.ranks[0]][-2:] == ["signature", "end"]
    end = run.ranks[0][-1]
    assert (end["updates"], end["reason"]) == (3, "stopped")
    assert (end["hooks_ok"], end["clocks_ok"]) == (True, True)


def test_short_run_finishes_by_itself(watch: Watch) -> None:
    """A script with fewer updates than wanted ends normally, with its end signature."""
    run = watch("train_tiny.py", "--updates", "2")
    assert "finished" in run.output
    assert run.of_kind("end")[0]["reason"] == "finished"
    assert run.of_kind("end")[0]["updates"] == 2
    assert run.signature("end")["params"]


def test_without_stop_the_script_runs_on(watch: Watch) -> None:
    """When the agent does not want a stop, all updates are observed."""
    run = watch("train_tiny.py", stop=False)
    assert "finished" in run.output
    assert [u["i"] for u in run.updates] == list(range(6))


@pytest.mark.slow
def test_all_ranks_report_and_stop_together(watch: Watch) -> None:
    """Each rank says hello and ends, the launcher itself is silent, the job succeeds."""
    run = watch("train_tiny.py", "--parallel", "ddp", "--micro", "2", "--optimizer", "adamw", ranks=2)
    assert run.returncode == 0, run.errors
    assert sorted(run.ranks) == [0, 1]
    assert run.refused == []
    for rank in (0, 1):
        hello = run.of_kind("hello", rank)[0]
        assert (hello["rank"], hello["local_rank"], hello["world"]) == (rank, rank, 2)
        assert run.of_kind("end", rank)[0]["updates"] == 3
    assert len({run.of_kind("hello", rank)[0]["pid"] for rank in (0, 1)}) == 2


def test_refused_process_is_inert(watch: Watch) -> None:
    """After a refusal nothing is hooked and the script runs as if alone."""
    run = watch("train_tiny.py", refuse=True)
    assert run.returncode == 0
    assert "finished" in run.output
    assert run.ranks == {}
    assert len(run.refused) == 1


def test_worker_processes_do_not_report(watch: Watch) -> None:
    """A forked data loader worker inherits the hooks but not the connection."""
    run = watch("train_tiny.py", "--loader", "1")
    assert run.returncode == 0, run.errors
    assert len(run.updates) == 3
    assert [r["seq"] for r in run.ranks[0]] == list(range(len(run.ranks[0])))


def _python(code: str, path: str, env: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": path, **env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout


_STATE = """
import json, os, sys
ours = sorted(m for m in sys.modules if m.startswith("_infrarsi"))
print(json.dumps([ours, sys.excepthook is sys.__excepthook__, len(sys.meta_path), os._exit.__module__]))
"""


@pytest.mark.parametrize(
    "env", [{}, {"INFRARSI_PROBE_SOCKET": "/nowhere", "INFRARSI_PROBE": "{}"}, {"RANK": "0"}], ids=str
)
def test_nothing_happens_outside_of_a_rank(env: dict[str, str]) -> None:
    """Without the whole environment of a rank there is no hook, no import hook and no output."""
    seen = json.loads(_python(_STATE, str(payload_dir()), env))
    bare = json.loads(_python(_STATE, "", {}))
    assert seen[1:] == bare[1:]
    assert "_infrarsi_probe.session" not in seen[0] or "INFRARSI_PROBE_SOCKET" in env


def test_hidden_sitecustomize_still_runs(tmp_path: Path) -> None:
    """A sitecustomize that was there before runs too, also when it fails."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.was_here = True\n")
    path = f"{payload_dir()}:{tmp_path}"
    assert _python("import sys; print(sys.was_here)", path, {}).strip() == "True"


def test_unreachable_agent_does_not_stop_the_script() -> None:
    """A socket that nobody listens on leaves a note on stderr, nothing more."""
    env = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "INFRARSI_PROBE_SOCKET": "/nowhere/socket"}
    env |= {
        "INFRARSI_PROBE": json.dumps({"total_updates": 1, "nonce": "00"}),
        "PYTHONPATH": str(payload_dir()),
    }
    done = subprocess.run(
        [sys.executable, "-c", "print('ran')"], env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout == "ran\n"
    assert "not started" in done.stderr
