"""Readers of a study folder: what they show of a hand-written journal, and that they take nothing over."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.errors import ExitCode
from engine.journal.folder import StudyFolder
from engine.journal.log import JournalWriter
from engine.schema.study import Event, StageEntered
from slurm.unattended.folder import EngineFolder
from slurm.unattended.records import EngineState, Phase, write_record
from tests.cli.answers import Infrarsi
from tests.cli.stories import BASELINE, CREATED, FAST, PROPOSED, SLOW

STORY: tuple[Event, ...] = (CREATED, *BASELINE, PROPOSED, FAST)


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """A study whose engine is gone."""
    folder = StudyFolder.create(tmp_path / "study")
    writer = JournalWriter(folder.journal, 0)
    for at, event in enumerate(STORY):
        writer.append(event, 1000.0 + at)
    writer.close()
    return folder


def _files(folder: StudyFolder) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.root.rglob("*") if path.is_file()}


def test_status_reads_and_changes_nothing(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """The contract keys are there, and the folder is what it was."""
    before = _files(study)
    answer = infrarsi("status", study.root, "--json")
    assert answer.code == ExitCode.DONE
    value = answer.value
    assert {"study_dir", "state", "trials", "best", "baseline", "gpu_hours"} <= set(value)
    assert value["study_dir"] == str(study.root)
    assert [trial["id"] for trial in value["trials"]] == ["b001", "t001"]
    assert value["trials"][1]["speedup"] == 1.25
    assert set(value["gpu_hours"]) == {"total", "succeeded", "failed", "cancelled", "idle", "verification"}
    assert value["engine"] is None
    assert _files(study) == before


def test_status_in_words(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """A person reads the task, that no engine runs, and how to go on."""
    answer = infrarsi("status", study.root)
    assert "tiny" in answer.stdout
    assert "infrarsi resume" in answer.stdout
    assert "1 searched" in answer.stdout


def test_an_unattended_engine_comes_back_by_itself(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """While its job will be started again nobody is invited to take the study over; afterwards again."""
    folder = EngineFolder.of(study.root)
    folder.root.mkdir()
    state = EngineState(
        phase=Phase.LEFT, words="Slurm may start it again", job_id="17", host="n1", restarts=0, at=1.0
    )
    write_record(folder.state, state)
    words = infrarsi("status", study.root).stdout
    assert "job 17 is left: Slurm may start it again" in words
    assert "infrarsi resume" not in words
    write_record(folder.state, state.model_copy(update={"phase": Phase.ENDED}))
    assert "infrarsi resume" in infrarsi("status", study.root).stdout


def test_stop_without_an_engine_leaves_no_request(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """Nothing waits in the folder to stop a later engine."""
    answer = infrarsi("stop", study.root, "--json")
    assert (answer.code, answer.value["stopping"]) == (ExitCode.DONE, False)
    assert list(study.requests.iterdir()) == []


def test_deploy_without_a_verified_winner_is_no_error(
    infrarsi: Infrarsi, study: StudyFolder, tmp_path: Path
) -> None:
    """Nothing was proven, so nothing is deployed: exit code 1, and no target is made."""
    answer = infrarsi("deploy", study.root, "--to", tmp_path / "target", "--json")
    assert (answer.code, answer.value["deployed"]) == (ExitCode.NO_IMPROVEMENT, None)
    assert not (tmp_path / "target").exists()


def test_a_torn_journal_line_is_tolerated(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """A line that a crash cut short is left out."""
    segment = study.journal / "000000.jsonl"
    with segment.open("ab") as stream:
        stream.write(b'{"v": 1, "epo')
    assert len(infrarsi("status", study.root, "--json").value["trials"]) == 2


def test_a_damaged_journal_is_an_integrity_error(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """A broken line that is not the last names the file; exit code 5."""
    segment = study.journal / "000000.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([lines[0][:40] + b"\n", *lines[1:]]))
    answer = infrarsi("status", study.root, "--json")
    assert answer.code == ExitCode.INTEGRITY
    assert answer.value["error"]["file"] == str(segment)


@pytest.mark.parametrize("words", [("run",), ("diagnose",)])
def test_a_study_is_never_overwritten(
    infrarsi: Infrarsi, study: StudyFolder, task_folder: Path, words: tuple[str, ...]
) -> None:
    """An --out that exists is refused before anything is written."""
    before = _files(study)
    answer = infrarsi(*words, task_folder, "--out", study.root, "--json")
    assert (answer.code, answer.value["error"]["key"]) == (ExitCode.USAGE, "--out")
    assert _files(study) == before


def test_a_study_that_never_began_says_so(infrarsi: Infrarsi, tmp_path: Path) -> None:
    """A folder without a first event is explained by `resume` and readable by `status`."""
    folder = StudyFolder.create(tmp_path / "unborn")
    assert infrarsi("status", folder.root).code == ExitCode.DONE
    answer = infrarsi("resume", folder.root, "--json")
    assert answer.code == ExitCode.USAGE
    assert "began" in answer.value["error"]["message"]


def test_a_stopped_study_is_shown_as_stopped(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """The last stage and its note come from the newest segment."""
    writer = JournalWriter(study.journal, 1)
    writer.append(SLOW, 1100.0)
    writer.append(StageEntered.model_validate({"stage": "stopped", "note": "enough"}), 1101.0)
    writer.close()
    answer = infrarsi("status", study.root, "--json")
    assert (answer.value["state"], answer.value["note"]) == ("stopped", "enough")
