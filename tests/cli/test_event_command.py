"""`--on-event`: a user's command beside the engine, which nothing that goes wrong with it disturbs."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.stages.hooks import StudyEvent
from engine.task.load import load_task
from infrarsi_tui.composition import Choices, study_options
from infrarsi_tui.event_command import EventCommand

DEADLINE_S = 20.0


def _run(command: str | None, folder: Path, timeout_s: float = DEADLINE_S) -> list[str]:
    """Run a command for one event; what was said about it."""
    said: list[str] = []
    events = EventCommand(command, folder, said.append, timeout_s=timeout_s)
    events.happened(StudyEvent.STALLED)
    events.finish()
    return said


def test_the_command_knows_event_and_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are in its environment; keys and variables of a job are not."""
    monkeypatch.setenv("ANTHROPIC_API_KEY", "secret")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    words = 'cd "$INFRARSI_STUDY"; env > seen; echo "$INFRARSI_EVENT in $INFRARSI_STUDY" > told'
    assert _run(words, tmp_path) == []
    assert (tmp_path / "told").read_text() == f"stalled in {tmp_path}\n"
    seen = (tmp_path / "seen").read_text()
    assert "secret" not in seen
    assert "SLURM_JOB_ID" not in seen


def test_a_failing_command_is_told(tmp_path: Path) -> None:
    """Its exit code and its last words are one sentence."""
    (sentence,) = _run("echo no such address >&2; exit 7", tmp_path)
    assert "7" in sentence
    assert "no such address" in sentence


def test_a_command_that_hangs_is_killed_with_its_children(tmp_path: Path) -> None:
    """After the time limit nothing of it runs, and that is told."""
    begin = time.monotonic()
    (sentence,) = _run(f"(sleep 3; touch {tmp_path}/late) & sleep 600", tmp_path, timeout_s=0.5)
    assert "killed" in sentence
    assert time.monotonic() - begin < DEADLINE_S
    time.sleep(max(0.0, begin + 4.0 - time.monotonic()))
    assert not (tmp_path / "late").exists()


def test_events_return_at_once(tmp_path: Path) -> None:
    """The engine does not wait for the command."""
    events = EventCommand("sleep 2", tmp_path, lambda text: None)
    begin = time.monotonic()
    events.happened(StudyEvent.FAILED)
    assert time.monotonic() - begin < 1.5
    events.finish()


def test_no_command_is_no_process(tmp_path: Path) -> None:
    """Without the option nothing happens."""
    assert _run(None, tmp_path) == []


def test_the_study_keeps_the_command(task_folder: Path) -> None:
    """It is an option of the study, so that `resume` has it too."""
    options = study_options(load_task(task_folder), Choices(on_event="mail -s $INFRARSI_EVENT me"))
    assert options.on_event == "mail -s $INFRARSI_EVENT me"
