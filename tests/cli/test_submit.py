"""`infrarsi submit`: what it refuses, what it hands over, what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.errors import ExitCode
from engine.journal.folder import StudyFolder
from infrarsi_tui.cli.parser import build_parser
from slurm.unattended.folder import EngineFolder
from slurm.unattended.records import EngineOrder, read_record
from tests.cli.answers import Infrarsi
from tests.slurm.unattended.engine_jobs import calls, quiet_slurm


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = quiet_slurm(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def _order(study: Path) -> EngineOrder:
    order = read_record(EngineFolder.of(study).order, EngineOrder)
    assert order is not None
    return order


def test_a_study_is_handed_over(tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi) -> None:
    """One job is submitted; the answer names it, its log and the study; the study itself is not made here."""
    answer = infrarsi("submit", task_folder, "--out", tmp_path / "study", "--json")
    assert answer.code == 0, answer.stderr
    assert answer.value["job_id"] == "72"
    assert answer.value["study_dir"] == str(tmp_path / "study")
    assert answer.value["log"] == str(tmp_path / "study.engine" / "engine.log")
    assert answer.value["resumes"] is False
    assert len(calls(slurm, "sbatch")) == 1
    assert not (tmp_path / "study").exists()


def test_people_are_told_how_to_watch(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """Job, log, and the commands that follow."""
    answer = infrarsi("submit", task_folder, "--out", tmp_path / "study")
    for words in (
        "job 72",
        "engine.log",
        "infrarsi attach",
        "infrarsi status",
        "infrarsi stop",
        "scancel 72",
    ):
        assert words in answer.stdout


def test_the_options_of_run_arrive(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """The command of the job parses to what was asked for here, with paths that hold from any folder."""
    words = ["--trials", "7", "--gpu-hours", "2.5", "--seed", "3", "--deadline", "2030-01-02T03:04:05+01:00"]
    words += [
        "--advisor",
        "none",
        "--patches",
        "off",
        "--deploy",
        "there",
        "--no-store",
        "--on-event",
        "echo 'a b'",
    ]
    assert infrarsi("submit", task_folder, "--out", tmp_path / "study", *words).code == 0
    order = _order(tmp_path / "study")
    given = build_parser("0").parse_args(["run", str(task_folder), *words])
    passed = build_parser("0").parse_args(list(order.run[4:]))
    for name in ("trials", "gpu_hours", "seed", "deadline", "advisor", "patches", "no_store", "on_event"):
        assert getattr(passed, name) == getattr(given, name), name
    assert (passed.command, passed.executor, passed.json, passed.display) == ("run", "slurm", True, "log")
    assert passed.task == task_folder.resolve()
    assert passed.deploy == Path.cwd() / "there"
    resumed = build_parser("0").parse_args(list(order.resume[4:]))
    assert (resumed.command, resumed.study) == ("resume", tmp_path / "study")


def test_an_invalid_task_is_refused_here(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """A mistake of the task file is told at once, and nothing is submitted."""
    with (task_folder / "infrarsi.toml").open("a") as stream:
        stream.write("[slurm]\npartitoin = 'gpu'\n")
    answer = infrarsi("submit", task_folder, "--out", tmp_path / "study", "--json")
    assert answer.code == ExitCode.USAGE
    assert answer.value["error"]["kind"] == "task_file"
    assert calls(slurm, "sbatch") == []
    assert not (tmp_path / "study.engine").exists()


def test_other_executors_are_refused(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """The engine's own small job is no place for trials."""
    answer = infrarsi("submit", task_folder, "--executor", "local", "--json")
    assert answer.code == ExitCode.USAGE
    assert answer.value["error"]["key"] == "--executor"


def test_no_slurm_is_infrastructure(
    tmp_path: Path, task_folder: Path, infrarsi: Infrarsi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Slurm the exit code is 3 and the way out is named."""
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = infrarsi("submit", task_folder, "--json")
    assert answer.code == ExitCode.INFRASTRUCTURE
    assert "local" in answer.value["error"]["hint"]


def test_an_existing_study_is_resumed(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """A folder that holds a study is gone on with; any other folder is refused."""
    StudyFolder.create(tmp_path / "study")
    answer = infrarsi("submit", task_folder, "--out", tmp_path / "study", "--json")
    assert answer.code == 0
    assert answer.value["resumes"] is True
    (tmp_path / "other").mkdir()
    assert infrarsi("submit", task_folder, "--out", tmp_path / "other").code == ExitCode.USAGE


def test_a_living_engine_job_is_busy(
    tmp_path: Path, task_folder: Path, slurm: Path, infrarsi: Infrarsi
) -> None:
    """While the first engine job is in the queue a second one is refused with 3."""
    first = infrarsi("submit", task_folder, "--out", tmp_path / "study", "--json")
    line = f"72|RUNNING|None|n1|0|0:0|1800000000|1800000001|N/A|1440:00|{first.value['job_name']}"
    quiet_slurm(slurm, squeue=f"echo '{line}'")
    answer = infrarsi("submit", task_folder, "--out", tmp_path / "study", "--json")
    assert answer.code == ExitCode.INFRASTRUCTURE
    assert answer.value["error"]["kind"] == "study_busy"
    assert json.loads((tmp_path / "study.engine" / "submission.json").read_text())["number"] == 1
