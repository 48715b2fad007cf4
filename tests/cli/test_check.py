"""`check`: the samples are valid, broken task files are explained, nothing is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ExitCode
from tests.cli.answers import MINIMAL_TASK, ROOT, Infrarsi

SAMPLES = sorted(path.relative_to(ROOT) for path in (ROOT / "sample_tasks").glob("*/infrarsi*.toml"))
KEYS = {
    "task",
    "file",
    "project",
    "launcher",
    "command",
    "python",
    "allocation",
    "parameters",
    "configurations",
    "editable",
    "locked",
    "warnings",
    "submission_script",
    "test_only",
}
BROKEN: dict[str, tuple[str, str, str, str]] = {
    "misspelt key": ('launcher = "command"', 'launchr = "command"', "task.launchr", "launcher"),
    "misspelt section": ("[allocation]", "[alocation]", "alocation", "allocation"),
    "wrong word": ('launcher = "command"', 'launcher = "mpirun"', "task.launcher", "torchrun"),
    "wrong type": ("nodes = 1", 'nodes = "one"', "allocation.nodes", "one"),
    "missing name": ('name = "tiny"\n', "", "task.name", "name"),
    "missing script": ('["train.py"]', '["trian.py"]', "task.command", "train.py"),
    "default that is no value": ("default = 1", "default = 3", "parameters", "3"),
    "binding without a file": (
        '{ env = "MICRO_BATCH" }',
        '{ file = "config.toml", key = "a.b" }',
        "parameters",
        "config.toml",
    ),
    "bad expression": (
        "default = 1",
        "default = 1\nwhen = \"__import__('os')\"",
        "parameters",
        "__import__",
    ),
}


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_there_are_samples() -> None:
    """The samples that the next test runs over are found."""
    assert {path.parent.name for path in SAMPLES} >= {"dense_gpt", "moe_gpt"}


@pytest.mark.parametrize("path", SAMPLES, ids=str)
def test_samples_are_valid(infrarsi: Infrarsi, path: Path) -> None:
    """Every sample task file passes, and its defaults are among its values."""
    answer = infrarsi("check", ROOT / path, "--json")
    assert answer.code == ExitCode.DONE
    assert set(answer.value) == KEYS
    assert answer.value["parameters"]
    for parameter in answer.value["parameters"]:
        assert parameter["default"] in parameter["values"]
        assert set(map(str, parameter["initial"])) <= set(map(str, parameter["values"]))


def test_words_for_people_hold_the_same(infrarsi: Infrarsi, task_folder: Path) -> None:
    """Without --json the same facts are text on stdout."""
    answer = infrarsi("check", task_folder)
    assert answer.code == ExitCode.DONE
    for fact in ("tiny", "is valid", "command: train.py", "1 ranks on 1 node(s), cpu", "[1], 2"):
        assert fact in answer.stdout


def test_a_folder_and_its_file_are_the_same_task(infrarsi: Infrarsi, task_folder: Path) -> None:
    """TASK may name the file or its folder."""
    assert (
        infrarsi("check", task_folder, "--json").value
        == infrarsi("check", task_folder / "infrarsi.toml", "--json").value
    )


def test_check_writes_nothing(infrarsi: Infrarsi, task_folder: Path) -> None:
    """The project is byte for byte what it was."""
    before = _tree(task_folder)
    infrarsi("check", task_folder)
    assert _tree(task_folder) == before


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_task_file_is_explained(infrarsi: Infrarsi, task_folder: Path, name: str) -> None:
    """File, key and the offending or expected word are named; exit code 2."""
    right, wrong, key, word = BROKEN[name]
    path = task_folder / "infrarsi.toml"
    assert right in MINIMAL_TASK
    path.write_text(MINIMAL_TASK.replace(right, wrong))
    answer = infrarsi("check", task_folder, "--json")
    assert answer.code == ExitCode.USAGE
    error = answer.value["error"]
    assert error["kind"] == "task_file"
    assert error["file"] == str(path)
    assert error["key"].startswith(key)
    assert word in f"{error['key']} {error['message']} {error['hint']}"
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "content",
    [b"", b"[task", b"\xff\xfe", b"[task]\nname = 1\n", b"a = " + b"[" * 3000, b"task = 3"],
    ids=["empty", "torn", "no UTF-8", "number for a name", "nested too deep", "no section"],
)
def test_no_content_makes_a_traceback(infrarsi: Infrarsi, task_folder: Path, content: bytes) -> None:
    """Whatever the file holds, the answer is an error with the file's name."""
    path = task_folder / "infrarsi.toml"
    path.write_bytes(content)
    answer = infrarsi("check", task_folder, "--json")
    assert answer.code == ExitCode.USAGE
    assert answer.value["error"]["file"] == str(path)
    assert "Traceback" not in answer.stderr


def test_a_task_that_cannot_be_started_makes_no_study(
    infrarsi: Infrarsi, task_folder: Path, tmp_path: Path
) -> None:
    """`run` and `trial` check the task before they write anything."""
    (task_folder / "infrarsi.toml").write_text("[task]\n")
    for command in ("run", "trial", "diagnose"):
        out = tmp_path / command
        assert infrarsi(command, task_folder, "--out", out, "--json").code == ExitCode.USAGE
        assert not out.exists()
