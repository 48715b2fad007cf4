"""A study open for writing: its heartbeat, its requests, and the end of its right to write."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import IntegrityError, StudyBusyError
from engine.journal import lease
from engine.journal.folder import StudyFolder
from engine.journal.heartbeat import Heartbeat
from engine.journal.requests import post_request
from engine.journal.session import Detached, StopRequested, StudySession
from engine.schema.study import SearchEnded
from tests.study.simulated import VirtualClock

BEAT_S = 0.01
LIMIT_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> StudyFolder:
    return StudyFolder.create(tmp_path / "study")


@pytest.fixture
def heartbeat(folder: StudyFolder) -> Iterator[Heartbeat]:
    epoch = lease.claim_epoch(folder.journal)
    beating = Heartbeat(folder.journal, epoch, BEAT_S)
    yield beating
    beating.stop()


def _lease(folder: StudyFolder, epoch: int = 0) -> dict[str, object]:
    content = json.loads((folder.journal / f"{epoch:06d}.claim" / "lease.json").read_text())
    assert isinstance(content, dict)
    return content


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "the condition never held"
        time.sleep(BEAT_S)


def _is_beating(epoch: int = 0) -> bool:
    return any(thread.name == f"heartbeat-{epoch}" for thread in threading.enumerate())


def test_the_lease_stays_fresh_while_the_engine_is_busy(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease is renewed although nobody calls heartbeat(), and not any more once the study is closed."""
    monkeypatch.setattr(lease, "HEARTBEAT_S", BEAT_S)
    with StudySession(folder, VirtualClock()):
        before = _lease(folder)["at"]
        _until(lambda: _lease(folder)["at"] != before)
    assert not _is_beating()
    assert _lease(folder)["released"] is True


def test_a_beat_that_fails_is_noted_and_tried_again(folder: StudyFolder, heartbeat: Heartbeat) -> None:
    """An obstacle in the lease's place ends nothing; without it the beat goes on."""
    path = folder.journal / "000000.claim" / "lease.json"
    aside = path.with_name("aside")
    while not path.is_dir():  # a beat may come between the two calls
        path.unlink()
        try:
            path.mkdir()
        except FileExistsError:
            continue
    (path / "obstacle").mkdir()
    _until(lambda: heartbeat.problem is not None)
    assert _is_beating()
    path.rename(aside)
    _until(lambda: heartbeat.problem is None and path.is_file())


@pytest.mark.usefixtures("heartbeat")
def test_a_newer_epoch_ends_the_heartbeat(folder: StudyFolder) -> None:
    """An engine that was replaced stops saying that it lives."""
    (folder.journal / "000001.claim").mkdir()
    _until(lambda: not _is_beating())


def test_an_engine_that_was_replaced_writes_nothing(folder: StudyFolder) -> None:
    """A record after another engine's claim is refused before a byte of it is written."""
    session = StudySession(folder, VirtualClock())
    with session:
        before = (folder.journal / "000000.jsonl").read_bytes()
        (folder.journal / "000001.claim").mkdir()
        with pytest.raises(StudyBusyError):
            session.record(SearchEnded(reason="none"))
    assert (folder.journal / "000000.jsonl").read_bytes() == before
    assert session.state.search_ended is None


def test_requests_to_an_earlier_engine_are_dropped(folder: StudyFolder) -> None:
    """A stop that nobody took does not end the next engine; one that comes later does."""
    post_request(folder.requests, "stop", "yesterday")
    with StudySession(folder, VirtualClock()) as session:
        session.heartbeat()
        post_request(folder.requests, "stop", "today")
        with pytest.raises(StopRequested, match="today"):
            session.heartbeat()


def test_an_engine_that_is_told_to_leave_leaves_at_its_next_heartbeat(folder: StudyFolder) -> None:
    """Detached comes before anything else and is no Exception: nothing catches it by accident."""
    with StudySession(folder, VirtualClock()) as session:
        post_request(folder.requests, "stop", "later")
        session.detach()
        with pytest.raises(Detached):
            session.heartbeat()
        assert session.state.note is None
    assert not issubclass(Detached, Exception)
    assert len(list(folder.requests.glob("*.json"))) == 1


def test_a_study_that_cannot_be_opened_is_left_free(folder: StudyFolder) -> None:
    """A broken journal leaves neither a heartbeat nor an owner behind."""
    (folder.journal / "000000.jsonl").write_text("broken\n{}\n")
    (folder.journal / "000000.claim").mkdir()
    lease.release(folder.journal, 0)
    with pytest.raises(IntegrityError):
        StudySession(folder, VirtualClock())
    assert not _is_beating(1)
    assert _lease(folder, 1)["released"] is True
