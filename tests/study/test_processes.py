"""Real engines, agents and training processes: killed, interrupted, starved of disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from engine.journal.log import read_entries
from engine.journal.state import StudyState
from engine.schema.study import TrialFinished
from engine.schema.trial import OutcomeKind, TrialKind
from tests.study.processes import (
    all_gone,
    copy_project,
    environment,
    finish,
    infrarsi,
    journal,
    start,
    wait_for,
)

slow = pytest.mark.slow

PATCH = """\
--- a/model.py
+++ b/model.py
@@ -1,2 +1,2 @@
-WIDTH = 32
+WIDTH = 16
 DEPTH = 2
"""


def _submitted(trial_id: str) -> Callable[[StudyState], bool]:
    def holds(state: StudyState) -> bool:
        trial = state.trials.get(trial_id)
        return trial is not None and trial.handle is not None and trial.outcome is None

    return holds


def _proposed(trial_id: str) -> Callable[[StudyState], bool]:
    return lambda state: trial_id in state.trials


MOMENTS: dict[str, Callable[[StudyState], bool]] = {
    "right after creation": lambda state: state.created is not None,
    "during a baseline": _submitted("b002"),
    "during a search trial": _proposed("t001"),
    "between submission and end": _submitted("t001"),
    "during verification": _submitted("v003"),
}


@slow
@pytest.mark.timeout(600)
def test_killed_at_five_moments(tmp_path: Path) -> None:
    """SIGKILL of the engine, five times in one study: resume ends it, each trial once, no process left."""
    project, study = copy_project(tmp_path / "project"), tmp_path / "study"
    process = start(tmp_path, "run", project, "--out", study, "--display", "none")
    for moment, condition in MOMENTS.items():
        wait_for(process, study, condition)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        assert process.returncode == -signal.SIGKILL, moment
        process = start(tmp_path, "resume", study, "--display", "none")
    code, report, narration = finish(process)
    assert report["state"] == "done", narration
    verified = report["best"] is not None and report["best"]["verified"]
    assert code == (0 if verified else 1)
    state = journal(study)
    assert state.epochs == 1 + len(MOMENTS)
    assert not state.open_trials()
    ends = Counter(
        entry.data.trial_id
        for entry in read_entries(study / "journal")
        if isinstance(entry.data, TrialFinished)
    )
    assert set(ends) == set(state.trials)
    assert set(ends.values()) == {1}
    assert len(state.counted(TrialKind.SEARCH)) == 1
    results = {path.parent.name for path in (study / "trials").glob("*/result.json")}
    voids = {
        name
        for name, trial in state.trials.items()
        if trial.outcome is not None and trial.outcome.kind is OutcomeKind.VOID
    }
    assert results | voids == set(state.trials)
    assert all_gone(study)


@slow
def test_interrupt_and_resume(tmp_path: Path) -> None:
    """Ctrl-C: exit 130, the study is stopped, the training processes are gone; resume picks it up."""
    project, study = copy_project(tmp_path / "project"), tmp_path / "study"
    process = start(tmp_path, "run", project, "--out", study, "--display", "none")
    wait_for(process, study, _submitted("b001"))
    os.kill(process.pid, signal.SIGINT)
    code, _, _ = finish(process)
    assert code == 130
    assert all_gone(study)
    state = journal(study)
    assert state.stage == "stopped"
    outcome = state.trials["b001"].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.CANCELLED
    again = start(tmp_path, "resume", study, "--display", "none")
    wait_for(again, study, _submitted("b002"))
    code, stopping, _ = infrarsi(tmp_path, "stop", study)
    assert (code, stopping["stopping"]) == (0, True)
    code, _, _ = finish(again)
    assert code == 130
    assert all_gone(study)


@slow
def test_a_second_engine_is_refused(tmp_path: Path) -> None:
    """While one engine works, resume says so with exit 3, and the first one goes on."""
    project, study = copy_project(tmp_path / "project"), tmp_path / "study"
    process = start(tmp_path, "run", project, "--out", study, "--display", "none")
    wait_for(process, study, _submitted("b001"))
    code, value, _ = infrarsi(tmp_path, "resume", study)
    assert code == 3
    assert value["error"]["kind"] == "study_busy"
    code, status, _ = infrarsi(tmp_path, "status", study)
    assert code == 0
    assert str(process.pid) in status["engine"]
    os.kill(process.pid, signal.SIGINT)
    finish(process)
    assert all_gone(study)


@slow
def test_a_baseline_that_crashes(tmp_path: Path) -> None:
    """Exit 4, the script's own words in the JSON error and in the journal."""
    project, study = (
        copy_project(tmp_path / "project", **{"broken = false": "broken = true"}),
        tmp_path / "study",
    )
    code, value, _ = infrarsi(tmp_path, "run", project, "--out", study, "--display", "none")
    assert code == 4
    assert value["error"]["kind"] == "baseline_failed"
    assert "corpus.bin" in value["error"]["message"]
    code, status, _ = infrarsi(tmp_path, "status", study)
    assert (code, status["state"]) == (0, "failed")
    assert status["trials"][0]["attribution"]["kind"] == "user_error"
    assert all_gone(study)


@slow
@pytest.mark.timeout(600)
def test_a_full_disk(tmp_path: Path) -> None:
    """Exit 3 with what to do; `status` still reads the study; with space again, resume goes on."""
    copy_project(tmp_path / "project")
    (tmp_path / "small").mkdir()
    script = Path(__file__).parent / "on_a_small_disk.py"
    command = [sys.executable, str(script), str(tmp_path)]
    if os.geteuid() != 0:
        command = ["unshare", "-rm", *command]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=500, check=False
    )
    if done.returncode == 77:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["run"]["code"] == 3, seen["run"]
    assert seen["run"]["value"]["error"]["kind"] == "disk_full"
    assert "resume" in seen["run"]["value"]["error"]["hint"]
    assert seen["status"]["code"] == 0
    assert seen["status"]["value"]["trials"]
    assert seen["left"] == []
    assert seen["resumed"]["progress"] is True


def test_a_misspelt_key(tmp_path: Path) -> None:
    """Exit 2, one JSON object that names file, key and the nearest valid key; no study is made."""
    project = copy_project(tmp_path / "project", warmup_updates="warmup_update")
    code, value, _ = infrarsi(tmp_path, "run", project, "--out", tmp_path / "study")
    assert code == 2
    error = value["error"]
    assert error["file"].endswith("infrarsi.toml")
    assert "warmup_update" in error["key"]
    assert "warmup_updates" in json.dumps(error)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("command", ["run", "check", "diagnose", "trial"])
def test_a_missing_project(tmp_path: Path, command: str) -> None:
    """Exit 2 and a JSON error that names the path."""
    code, value, _ = infrarsi(tmp_path, command, tmp_path / "nowhere")
    assert code == 2
    assert "nowhere" in json.dumps(value["error"])


@pytest.mark.parametrize("command", ["status", "resume", "stop", "report", "search"])
def test_a_missing_study(tmp_path: Path, command: str) -> None:
    """Exit 2: the folder is no study."""
    code, value, _ = infrarsi(tmp_path, command, tmp_path)
    assert code == 2
    assert value["error"]["kind"] == "usage"


def test_an_existing_out_folder(tmp_path: Path) -> None:
    """`run` never writes into a folder that is there."""
    project = copy_project(tmp_path / "project")
    (tmp_path / "study").mkdir()
    code, value, _ = infrarsi(tmp_path, "run", project, "--out", tmp_path / "study")
    assert code == 2
    assert value["error"]["key"] == "--out"
    assert list((tmp_path / "study").iterdir()) == []


def test_a_patch_outside_the_scope_is_not_run(tmp_path: Path) -> None:
    """Rejected by scope_respected, exit 1, and no job was started."""
    project, study = copy_project(tmp_path / "project"), tmp_path / "study"
    patch = tmp_path / "narrow.patch"
    patch.write_text(PATCH)
    code, value, narration = infrarsi(
        tmp_path, "trial", project, "--patch", patch, "--out", study, "--display", "none"
    )
    assert code == 1, narration
    assert value["outcome"] == "rejected"
    assert value["speedup"] is None
    assert value["verified"] is False
    verdicts = {each["name"]: each["status"] for each in value["invariants"]}
    assert verdicts["scope_respected"] == "failed"
    assert not list((study / "trials").glob("*/result.json"))
    assert not list((study / "trials").glob("*/job.json"))
    assert set(journal(study).trials) == {"m001"}
