"""Real engines that are asked to go: by a signal their jobs run on, by Ctrl-C they are ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from engine.journal.log import read_entries
from engine.journal.state import StudyState
from engine.schema.study import TrialFinished
from engine.schema.trial import OutcomeKind
from tests.slurm_cluster.projects import copy_project
from tests.study.processes import (
    all_gone,
    environment,
    finish,
    infrarsi,
    journal,
    start,
    wait_for,
)

pytestmark = pytest.mark.slow


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A job of one rank without torch, whose runs take a few seconds."""
    return copy_project(tmp_path / "project", "local", allocation__gpus_per_node=1, pace__step_ms=250)


def _runs(trial_id: str, study: Path) -> bool:
    trial = study / "trials" / trial_id
    return (trial / "job.json").exists() and not (trial / "result.json").exists()


def _running(state: StudyState, study: Path) -> bool:
    return "b002" in state.trials and _runs("b002", study)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_leaves_the_job_running(tmp_path: Path, task: Path, number: signal.Signals) -> None:
    """130 and the way to go on; the run ends by itself and is adopted: submitted once, ended once."""
    study = tmp_path / "study"
    process = start(tmp_path, "diagnose", task, "--out", study, "--display", "none")
    wait_for(process, study, lambda state: _running(state, study))
    process.send_signal(number)
    code, value, _ = finish(process)
    assert code == 130
    assert value["error"]["kind"] == "detached"
    assert f"infrarsi resume {study}" in value["error"]["hint"]
    left = journal(study)
    assert left.trials["b002"].outcome is None
    assert left.stage == "diagnosis"
    assert _runs("b002", study) or (study / "trials" / "b002" / "result.json").exists()
    assert not (study / "trials" / "b002" / "cancel").exists()
    again = start(tmp_path, "resume", study, "--display", "none")
    wait_for(again, study, lambda state: "b003" in state.trials)
    os.kill(again.pid, signal.SIGINT)
    finish(again)
    state = journal(study)
    outcome = state.trials["b002"].outcome
    assert outcome is not None
    assert outcome.kind is OutcomeKind.COMPLETED
    ends = Counter(
        entry.data.trial_id
        for entry in read_entries(study / "journal")
        if isinstance(entry.data, TrialFinished)
    )
    assert set(ends.values()) == {1}
    assert all_gone(study)


@pytest.mark.timeout(300)
def test_an_ignored_hangup_stays_ignored(tmp_path: Path, task: Path) -> None:
    """`nohup infrarsi …`: a lost connection is nothing to it; its trial goes on under it."""
    study = tmp_path / "study"
    words = [sys.executable, "-m", "infrarsi_tui.main", "diagnose", str(task), "--out", str(study)]
    process = subprocess.Popen(
        ["nohup", *words, "--display", "none", "--json"],
        cwd=tmp_path,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_for(process, study, lambda state: "b001" in state.trials and _runs("b001", study))
    process.send_signal(signal.SIGHUP)
    wait_for(process, study, lambda state: "b002" in state.trials and _runs("b002", study))
    process.send_signal(signal.SIGTERM)
    code, value, _ = finish(process)
    assert (code, value["error"]["kind"]) == (130, "detached")
    assert all_gone(study)  # the run ends by itself


@pytest.mark.timeout(300)
def test_ctrl_c_twice_leaves_at_once(tmp_path: Path, task: Path) -> None:
    """The first ends the job; whatever the second interrupts, the study can be resumed and nothing stays."""
    study = tmp_path / "study"
    process = start(tmp_path, "diagnose", task, "--out", study, "--display", "none")
    wait_for(process, study, lambda state: _running(state, study))
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    _, narration = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in narration
    again = start(tmp_path, "resume", study, "--display", "none")
    state = wait_for(again, study, lambda state: "b003" in state.trials)
    outcome = state.trials["b002"].outcome
    assert outcome is not None
    os.kill(again.pid, signal.SIGINT)
    finish(again)
    assert all_gone(study)


@pytest.mark.timeout(300)
def test_an_event_command_hears_of_the_end(tmp_path: Path, task: Path) -> None:
    """A baseline that fails is an event; the command was stored with the study."""
    study = tmp_path / "study"
    config = task / "config.toml"
    text = config.read_text()
    for old, new in (('mode = "none"', 'mode = "raise"'), ("rank = 1", "rank = 0")):
        assert old in text
        text = text.replace(old, new)
    config.write_text(text)
    command = 'echo "$INFRARSI_EVENT" >> "$INFRARSI_STUDY/heard"'
    words = ("run", task, "--out", study, "--display", "none", "--on-event", command)
    code, _, narration = infrarsi(tmp_path, *words)
    assert code == 4, narration
    assert (study / "heard").read_text() == "failed\n"
    assert all_gone(study)
