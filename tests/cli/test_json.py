"""`--json`: one object on stdout, errors included; narration stays on stderr."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import ExitCode
from infrarsi_tui.cli import commands
from tests.cli.answers import MINIMAL_TASK, ROOT, Infrarsi

ERROR_KEYS = {"kind", "message", "file", "key", "hint"}
MISTAKES: dict[str, tuple[tuple[str, ...], str]] = {
    "unknown command": (("fly",), "usage"),
    "no task": (("check",), "usage"),
    "unknown option": (("check", ".", "--fast"), "usage"),
    "option of another command": (("check", ".", "--trials", "3"), "usage"),
    "abbreviated option": (("run", ".", "--tri", "3"), "usage"),
    "unknown executor": (("run", ".", "--executor", "moon"), "usage"),
    "no number": (("run", ".", "--trials", "many"), "usage"),
    "zero trials": (("run", ".", "--trials", "0"), "usage"),
    "fraction of a trial": (("run", ".", "--trials", "1.5"), "usage"),
    "negative seed": (("run", ".", "--seed", "-1"), "usage"),
    "no GPU-hours": (("run", ".", "--gpu-hours", "0"), "usage"),
    "infinite GPU-hours": (("run", ".", "--gpu-hours", "inf"), "usage"),
    "GPU-hours that are no number": (("run", ".", "--gpu-hours", "nan"), "usage"),
    "no date": (("run", ".", "--deadline", "tomorrow"), "usage"),
    "date before all time zones": (("run", ".", "--deadline", "0001-01-01"), "usage"),
    "task that does not exist": (("run", "missing"), "task_file"),
    "study that does not exist": (("status", "missing"), "usage"),
    "study that is no study": (("resume", "."), "usage"),
    "search without a study": (("search", "."), "usage"),
    "report without a study": (("report", "."), "usage"),
    "stop without a study": (("stop", "."), "usage"),
    "deploy without a target": (("deploy", "."), "usage"),
    "deploy without a study": (("deploy", ".", "--to", "x"), "usage"),
    "name that is no text": (("check", "\udcff"), "task_file"),
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Calls start in an empty folder, so that whatever they write is seen."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_json_object(infrarsi: Infrarsi, name: str, empty_folder: Path) -> None:
    """Each mistake gives the five keys on stdout, words on stderr, exit code 2, no traceback and no file."""
    words, kind = MISTAKES[name]
    answer = infrarsi(*words, "--json")
    assert answer.code == ExitCode.USAGE
    assert set(answer.value) == {"error"}
    error = answer.value["error"]
    assert set(error) == ERROR_KEYS
    assert error["kind"] == kind
    assert error["message"]
    assert error["hint"]
    assert answer.stderr.startswith("error: ")
    assert "Traceback" not in answer.stderr
    assert list(empty_folder.iterdir()) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_without_json_leaves_stdout_empty(infrarsi: Infrarsi, name: str) -> None:
    """Errors are narration: stdout stays clean for scripts."""
    answer = infrarsi(*MISTAKES[name][0])
    assert (answer.code, answer.stdout) == (ExitCode.USAGE, "")
    assert "Traceback" not in answer.stderr


def test_a_task_error_names_its_place(infrarsi: Infrarsi, task_folder: Path) -> None:
    """File and key lead to the mistake; the message holds the value and the rule."""
    path = task_folder / "infrarsi.toml"
    path.write_text(MINIMAL_TASK.replace("gpus_per_node = 1", "gpus_per_node = 0"))
    error = infrarsi("check", task_folder, "--json").value["error"]
    assert error["file"] == str(path)
    assert error["key"] == "allocation.gpus_per_node"
    assert "0" in error["message"]


@pytest.mark.parametrize("position", ["before", "after"])
def test_json_may_stand_anywhere_after_the_command(
    infrarsi: Infrarsi, task_folder: Path, position: str
) -> None:
    """`check --json TASK` and `check TASK --json` are the same."""
    words = ["--json", task_folder] if position == "before" else [task_folder, "--json"]
    answer = infrarsi("check", *words)
    assert answer.code == ExitCode.DONE
    assert answer.value["task"] == "tiny"
    assert answer.stderr == ""


def test_without_a_command_the_help_goes_to_stderr(infrarsi: Infrarsi) -> None:
    """A bare call is a usage error that shows what there is."""
    answer = infrarsi()
    assert (answer.code, answer.stdout) == (ExitCode.USAGE, "")
    assert "check" in answer.stderr


def test_a_defect_of_ours_is_json_too(infrarsi: Infrarsi, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen exception gives `internal`, exit code 70, and its lines on stderr to report."""
    monkeypatch.setattr(commands, "COMMANDS", {"check": ("math", "sqrt")})
    answer = infrarsi("check", ".", "--json")
    assert answer.code == ExitCode.INTERNAL
    assert answer.value["error"]["kind"] == "internal"
    assert "Traceback" in answer.stderr


def test_a_path_that_no_file_system_takes_is_an_error(infrarsi: Infrarsi, task_folder: Path) -> None:
    """An operating system's refusal names the path instead of showing our stack."""
    answer = infrarsi("diagnose", task_folder, "--out", "x" * 300, "--json")
    assert answer.code == ExitCode.INFRASTRUCTURE
    assert "x" * 300 in answer.value["error"]["file"]
    assert "Traceback" not in answer.stderr


def test_json_is_ascii_whatever_the_locale(task_folder: Path) -> None:
    """Names outside ASCII survive a locale that cannot print them."""
    path = task_folder / "infrarsi.toml"
    path.write_text(MINIMAL_TASK.replace('"tiny"', '"größer ×2"'), encoding="utf-8")
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "infrarsi_tui.main", "check", str(task_folder), "--json"],
        env=environment,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout.decode("ascii"))["task"] == "größer ×2"


def test_text_for_people_survives_an_ascii_terminal(task_folder: Path) -> None:
    """What a terminal cannot show is escaped, never a crash."""
    path = task_folder / "infrarsi.toml"
    path.write_text(MINIMAL_TASK.replace('"tiny"', '"×2"'), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "infrarsi_tui.main", "check", str(task_folder)],
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.startswith(b"\\xd72: ")


def test_a_reader_that_left_is_no_error(task_folder: Path) -> None:
    """`infrarsi check TASK | head -0` ends quietly."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "infrarsi_tui.main", "check", str(task_folder)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=write_end,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
            preexec_fn=lambda: signal.signal(signal.SIGPIPE, signal.SIG_IGN),
        )
    finally:
        os.close(write_end)
    assert (done.returncode, done.stderr) == (ExitCode.DONE, b"")
