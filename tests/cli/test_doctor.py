"""`infrarsi doctor`: what it prints and how it exits."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from infrarsi_tui.cli.terminal import terminal_checks
from tests.cli.answers import Infrarsi
from tests.slurm.unattended.engine_jobs import programs

KEYS = {"name", "group", "status", "found", "meaning", "hint"}


def _path(tmp_path: Path, *slurm: str) -> str:
    """A PATH with git, and only these of Slurm's programs."""
    folder = programs(tmp_path / "bin", **dict.fromkeys(slurm, "exit 1"))
    git = folder / "git"
    git.symlink_to("/usr/bin/git")
    return str(folder)


def test_a_machine_without_slurm(tmp_path: Path, infrarsi: Infrarsi, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Slurm the rest is checked and the exit code is 0; JSON has one shape for every check."""
    monkeypatch.setenv("PATH", _path(tmp_path))
    answer = infrarsi("doctor", "--study-dir", tmp_path, "--on-node", "--json")
    assert answer.code == 0, answer.stdout
    assert set(answer.value) == {"checks", "slurm_section"}
    checks = {check["name"]: check for check in answer.value["checks"]}
    assert all(set(check) == KEYS for check in checks.values())
    assert checks["slurm_commands"]["found"] == "this machine has no Slurm: local executor only"
    assert checks["slurm_commands"]["status"] == checks["node/job"]["status"] == "skipped"
    assert {"rename", "landlock", "git", "torch", "product", "terminal", "internet"} <= set(checks)
    assert answer.value["slurm_section"] == {}


def test_a_broken_slurm(tmp_path: Path, infrarsi: Infrarsi, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Slurm that does not answer makes the exit code 3, and the table says what fails."""
    names = ("squeue", "sbatch", "scontrol", "scancel", "srun", "sinfo")
    monkeypatch.setenv("PATH", _path(tmp_path, *names))
    answer = infrarsi("doctor", "--study-dir", tmp_path)
    assert answer.code == 3
    assert "FAIL" in answer.stdout
    assert "→ `scontrol ping`" in answer.stdout


def test_the_lines_for_the_task_file(
    tmp_path: Path, infrarsi: Infrarsi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed for infrarsi.toml is TOML, with a partition and a way of asking that worked."""
    folder = programs(
        tmp_path / "bin",
        sbatch='grep -q gpus-per-node "$2" && exit 0; echo "Invalid gres" >&2; exit 1',
        sinfo='[ "$1" = --version ] && echo slurm 23.02 || echo "big*|up|infinite|4|idle|9|9|gpu:h100:8"',
        scontrol="echo 'MinJobAge = 300 sec'",
        **dict.fromkeys(("squeue", "scancel", "srun"), "exit 0"),
    )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    answer = infrarsi("doctor", "--study-dir", tmp_path)
    assert answer.code == 0, answer.stdout
    lines = answer.stdout.partition("For infrarsi.toml:")[2]
    assert tomllib.loads(lines) == {"slurm": {"partition": "big", "gpu_request": "gpus-per-node"}}


def test_no_terminal_is_no_drawback() -> None:
    """In a pipe there is nothing to say about a terminal."""
    assert [check.status for check in terminal_checks({})] == ["skipped"]
