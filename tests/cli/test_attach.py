"""`attach` shows what another process does, takes nothing from it, and ends as it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from engine.errors import ExitCode
from engine.journal.folder import StudyFolder
from engine.journal.follow import JournalFollower
from engine.journal.log import JournalWriter, read_entries
from engine.schema.study import (
    EpochStarted,
    Event,
    SearchEnded,
    Stage,
    StageEntered,
    VerificationDone,
)
from infrarsi_tui.display.follow import StudyView
from tests.cli.answers import ROOT, Infrarsi
from tests.cli.stories import BASELINE, CREATED, DIAGNOSED, FAST, PROPOSED, SLOW, verdict

DEADLINE_S = 60.0
STORY: tuple[Event, ...] = (CREATED, *BASELINE, StageEntered(stage=Stage.SEARCH), PROPOSED, FAST)
DONE = StageEntered(stage=Stage.DONE)
VERIFIED = VerificationDone(verdicts=(verdict(verified=True),))
UNPROVEN = VerificationDone(verdicts=(verdict(verified=False),))


@pytest.fixture
def study(tmp_path: Path) -> StudyFolder:
    """A study in the middle of its search, without an engine."""
    folder = StudyFolder.create(tmp_path / "study")
    _write(folder, 0, STORY)
    return folder


def _write(folder: StudyFolder, epoch: int, events: Sequence[Event]) -> None:
    writer = JournalWriter(folder.journal, epoch)
    for at, event in enumerate(events):
        writer.append(event, 1000.0 + at)
    writer.close()


class StandIn:
    """A live engine of a study, told what to record."""

    def __init__(self, folder: StudyFolder) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(ROOT / "tests" / "cli" / "engine_stand_in.py"), str(folder.root)],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._answered()

    def tell(self, event: Event | str) -> None:
        """Have something recorded; returns when that is on disk."""
        assert self.process.stdin is not None
        self.process.stdin.write((event if isinstance(event, str) else event.model_dump_json()) + "\n")
        self.process.stdin.flush()
        self._answered()

    def die(self) -> None:
        """Kill it."""
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)

    def close(self) -> None:
        """Let it end in order."""
        if self.process.returncode is None:
            self.process.communicate(timeout=DEADLINE_S)

    def _answered(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ok\n"


@pytest.fixture
def stand_in(study: StudyFolder) -> Iterator[StandIn]:
    """An engine that works on the study."""
    engine = StandIn(study)
    yield engine
    engine.close()


def _later(act: Callable[[], None]) -> threading.Thread:
    """Do something while the main thread watches."""
    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ((SearchEnded(reason="r"), VERIFIED, DONE), ExitCode.DONE),
        ((SearchEnded(reason="r"), UNPROVEN, DONE), ExitCode.NO_IMPROVEMENT),
        ((StageEntered(stage=Stage.FAILED, note="n", exit_code=4),), ExitCode.BASELINE_FAILED),
        ((StageEntered(stage=Stage.FAILED, note="n"),), ExitCode.INFRASTRUCTURE),
        ((StageEntered(stage=Stage.STOPPED, note="n", exit_code=130),), ExitCode.INTERRUPTED),
        ((), ExitCode.INTERRUPTED),
        ((SearchEnded(reason="r"),), ExitCode.DONE),
        ((StageEntered(stage=Stage.REPORTING),), ExitCode.INTERRUPTED),
        ((StageEntered(stage=Stage.REPORTING), VERIFIED), ExitCode.DONE),
        ((StageEntered(stage=Stage.REPORTING), UNPROVEN), ExitCode.NO_IMPROVEMENT),
        ((StageEntered(stage=Stage.DIAGNOSIS), DIAGNOSED), ExitCode.DONE),
        (
            (
                StageEntered(stage=Stage.FAILED, note="n", exit_code=3),
                EpochStarted(epoch=1, host="h", pid=1),
            ),
            ExitCode.INTERRUPTED,
        ),
    ],
)
def test_the_exit_code_is_that_of_the_engine(
    infrarsi: Infrarsi, study: StudyFolder, ending: tuple[Event, ...], code: ExitCode
) -> None:
    """Whatever ended the study last decides; an engine that is gone without a word left it open."""
    _write(study, 1, ending)
    assert infrarsi("attach", study.root).code == code
    answer = infrarsi("attach", study.root, "--json", "--display", "none")
    assert answer.code == code
    assert answer.value["study_dir"] == str(study.root)


def test_a_study_without_an_engine_is_told_as_such(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """The narration so far is shown, and how to go on; not a byte of the study changes."""
    before = {path: path.read_bytes() for path in study.root.rglob("*") if path.is_file()}
    answer = infrarsi("attach", study.root)
    assert "1.25×" in answer.stderr
    assert f"`infrarsi resume {study.root}` goes on" in answer.stderr
    assert {path: path.read_bytes() for path in study.root.rglob("*") if path.is_file()} == before


def test_a_long_story_is_shown_in_short(infrarsi: Infrarsi, study: StudyFolder) -> None:
    """Of a thousand earlier lines a screenful is shown."""
    _write(study, 1, [StageEntered(stage=Stage.SEARCH, note=f"note {n}") for n in range(1000)])
    lines = infrarsi("attach", study.root, "--display", "plain").stderr.splitlines()
    assert len(lines) < 20
    assert any("note 999" in line for line in lines)


def test_it_follows_a_live_engine_to_its_end(
    infrarsi: Infrarsi, study: StudyFolder, stand_in: StandIn
) -> None:
    """What the engine records while somebody watches is shown, notices included; then its end."""

    def work() -> None:
        stand_in.tell(SLOW)
        stand_in.tell("NOTICE t002 waits for 2 min: all nodes are in use")
        stand_in.tell(UNPROVEN)
        stand_in.tell(DONE)

    thread = _later(work)
    answer = infrarsi("attach", study.root, "--display", "plain")
    thread.join()
    assert answer.code == ExitCode.NO_IMPROVEMENT
    assert f"watching process {stand_in.process.pid}" in answer.stderr
    assert "trial 2/4" in answer.stderr
    assert "── done" in answer.stderr


def test_a_notice_is_shown_while_it_is_new(study: StudyFolder, stand_in: StandIn) -> None:
    """A viewer hears what is said from now on, not what was said long ago, and each notice once."""
    stand_in.tell("NOTICE an old one")
    view = StudyView(study)
    stand_in.tell("NOTICE a new one")
    assert list(view.new_notices()) == ["a new one"]
    assert list(view.new_notices()) == []


def test_an_engine_that_dies_is_noticed(infrarsi: Infrarsi, study: StudyFolder, stand_in: StandIn) -> None:
    """A killed engine ends the watching, with the way to go on."""
    thread = _later(stand_in.die)
    answer = infrarsi("attach", study.root)
    thread.join()
    assert answer.code == ExitCode.INTERRUPTED
    assert "`infrarsi resume" in answer.stderr


@pytest.mark.parametrize("command", ["resume", "search", "report"])
def test_a_busy_study_is_watched(
    infrarsi: Infrarsi, study: StudyFolder, stand_in: StandIn, command: str
) -> None:
    """Without --json a second engine becomes a viewer that says who works; the first goes on undisturbed."""
    thread = _later(lambda: (stand_in.tell(UNPROVEN), stand_in.tell(DONE))[0])
    answer = infrarsi(command, study.root)
    thread.join()
    assert answer.code == ExitCode.NO_IMPROVEMENT
    assert f"process {stand_in.process.pid}" in answer.stderr
    assert "only watches" in answer.stderr


@pytest.mark.parametrize("command", ["resume", "search", "report"])
def test_a_busy_study_is_an_error_for_scripts(
    infrarsi: Infrarsi, study: StudyFolder, stand_in: StandIn, command: str
) -> None:
    """With --json nobody watches: exit 3 and who works on it."""
    answer = infrarsi(command, study.root, "--json")
    assert answer.code == ExitCode.INFRASTRUCTURE
    assert answer.value["error"]["kind"] == "study_busy"
    assert str(stand_in.process.pid) in answer.value["error"]["message"]


def test_an_interrupt_ends_the_watching_only(study: StudyFolder, stand_in: StandIn) -> None:
    """Ctrl-C: 130, one line that the engine goes on, no request to it and no signal."""
    viewer = subprocess.Popen(
        [sys.executable, "-m", "infrarsi_tui.main", "attach", str(study.root), "--display", "plain"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert viewer.stderr is not None
    lines: list[str] = []
    deadline = time.monotonic() + DEADLINE_S
    while not any("watching" in line for line in lines) and time.monotonic() < deadline:
        lines.append(viewer.stderr.readline())
    viewer.send_signal(signal.SIGINT)
    _, rest = viewer.communicate(timeout=DEADLINE_S)
    assert viewer.returncode == ExitCode.INTERRUPTED
    assert f"process {stand_in.process.pid}" in rest
    assert "goes on" in rest
    assert "Traceback" not in rest
    assert list(study.requests.iterdir()) == []
    stand_in.tell(SLOW)


def test_a_follower_sees_each_entry_once_and_no_torn_line(study: StudyFolder) -> None:
    """Entries come in order, a half-written line only when it is whole, a new segment after the old one."""
    follower = JournalFollower(study.journal)
    assert [entry.data for entry in follower.new_entries()] == list(STORY)
    _write(study, 1, [SLOW, DONE])
    path = study.journal / "000001.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert [entry.data for entry in follower.new_entries()] == [SLOW]
    path.write_bytes(whole)
    assert [entry.data for entry in follower.new_entries()] == [DONE]
    assert list(follower.new_entries()) == []
    assert [entry.data for entry in read_entries(study.journal)] == [*STORY, SLOW, DONE]
