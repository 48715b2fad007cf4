"""`check` and `--executor slurm`: the script before anything is submitted, clear words without a Slurm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.errors import ExitCode
from infrarsi_tui.cluster import nested_note
from tests.cli.answers import MINIMAL_TASK, Infrarsi

ACCEPTED = "sbatch: Job 7 to start at 2026-11-30T14:00:00 using 8 processors on nodes n1"
REFUSED = "allocation failure: Invalid qos specification"


@pytest.fixture
def without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH on which no program of Slurm is."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def _slurm_says(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, code: int) -> Path:
    folder.mkdir()
    for name in ("sbatch", "squeue"):
        program = folder / name
        program.write_text(
            f"#!/bin/sh\necho {name} \"$1\" >> {folder}/calls\necho '{words}' >&2\nexit {code}\n"
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder / "calls"


@pytest.fixture
def slurm_task(task_folder: Path) -> Path:
    """The minimal task with a [slurm] section."""
    text = MINIMAL_TASK + '\n[slurm]\npartition = "gpu"\nqos = "short"\ntime_limit_min = 30\n'
    (task_folder / "infrarsi.toml").write_text(text)
    return task_folder


def test_script_is_shown_for_a_task_with_slurm(
    infrarsi: Infrarsi, slurm_task: Path, without_slurm: None
) -> None:
    """The script holds what [slurm] and [allocation] ask for; where no Slurm is, it is not asked."""
    answer = infrarsi("check", slurm_task, "--json")
    assert answer.code == ExitCode.DONE
    script = answer.value["submission_script"].splitlines()
    for line in ("--partition=gpu", "--qos=short", "--time=30", "--nodes=1", "--no-requeue"):
        assert f"#SBATCH {line}" in script
    assert answer.value["test_only"] is None
    assert "sbatch is not on PATH" in infrarsi("check", slurm_task).stdout


@pytest.mark.parametrize("has_section", [True, False])
def test_executor_decides_whether_a_script_is_shown(
    infrarsi: Infrarsi, slurm_task: Path, without_slurm: None, has_section: bool
) -> None:
    """--executor overrules the task file in both directions."""
    if not has_section:
        (slurm_task / "infrarsi.toml").write_text(MINIMAL_TASK)
    other = "local" if has_section else "slurm"
    as_it_is = infrarsi("check", slurm_task, "--json").value["submission_script"]
    overruled = infrarsi("check", slurm_task, "--executor", other, "--json").value["submission_script"]
    assert (as_it_is is not None) == has_section
    assert (overruled is not None) != has_section


def test_slurms_answer_is_shown_verbatim(
    infrarsi: Infrarsi, slurm_task: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The words of `sbatch --test-only` and the start it expects; nothing else is called."""
    calls = _slurm_says(tmp_path / "bin", monkeypatch, ACCEPTED, 0)
    answer = infrarsi("check", slurm_task, "--json")
    assert answer.code == ExitCode.DONE
    assert answer.value["test_only"]["ok"] is True
    assert answer.value["test_only"]["text"] == ACCEPTED
    assert answer.value["test_only"]["start_estimate"] > 0
    assert calls.read_text() == "sbatch --test-only\n"


@pytest.mark.parametrize(
    ("options", "code"),
    [((), ExitCode.DONE), (("--executor", "slurm"), ExitCode.USAGE)],
    ids=["task", "asked"],
)
def test_refusal_is_shown_with_a_hint(
    infrarsi: Infrarsi,
    slurm_task: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    code: ExitCode,
) -> None:
    """The file is valid all the same; who asks for Slurm gets a failing exit code."""
    _slurm_says(tmp_path / "bin", monkeypatch, REFUSED, 1)
    answer = infrarsi("check", slurm_task, *options)
    assert answer.code == code
    assert REFUSED in answer.stdout
    assert "hint: `sacctmgr" in answer.stdout


@pytest.mark.parametrize("command", ["run", "trial", "diagnose"])
def test_executor_slurm_without_slurm_is_refused(
    infrarsi: Infrarsi, task_folder: Path, tmp_path: Path, without_slurm: None, command: str
) -> None:
    """Exit code 3, the next step, and no study."""
    out = tmp_path / "study"
    answer = infrarsi(command, task_folder, "--executor", "slurm", "--out", out, "--json")
    assert answer.code == ExitCode.INFRASTRUCTURE
    error = answer.value["error"]
    assert (error["kind"], error["key"]) == ("infrastructure", "--executor")
    assert "PATH" in error["message"]
    assert "--executor local" in error["hint"]
    assert not out.exists()


def test_option_that_is_ours_is_refused_before_a_study(
    infrarsi: Infrarsi, task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """File and key of the mistake; exit code 2, no study."""
    _slurm_says(tmp_path / "bin", monkeypatch, ACCEPTED, 0)
    path = task_folder / "infrarsi.toml"
    path.write_text(MINIMAL_TASK + "\n[slurm.extra]\nnodes = 4\n")
    for words in (("check",), ("run", "--executor", "slurm", "--out", tmp_path / "study")):
        answer = infrarsi(words[0], task_folder, *words[1:], "--json")
        assert answer.code == ExitCode.USAGE
        assert answer.value["error"]["file"] == str(path)
        assert answer.value["error"]["key"] == "slurm.extra.nodes"
    assert not (tmp_path / "study").exists()


def test_script_of_a_held_allocation(infrarsi: Infrarsi, slurm_task: Path, without_slurm: None) -> None:
    """In the mode `held` the script shown is that of the allocation which is held."""
    path = slurm_task / "infrarsi.toml"
    path.write_text(path.read_text() + 'mode = "held"\n')
    script = infrarsi("check", slurm_task, "--json").value["submission_script"]
    assert "#SBATCH --job-name=infrarsi-held-000000000000" in script.splitlines()
    assert "slurm.held.holder" in script


def test_inside_a_job_there_is_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a study on Slurm from inside a job is told, once, and only then."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.delenv("SLURM_JOBID", raising=False)
    assert nested_note() == []
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert "inside job 77" in nested_note()[0]
