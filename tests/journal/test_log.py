"""The journal on disk: durable, tolerant of a torn tail, strict about everything else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import DiskFullError, IntegrityError
from engine.journal.log import JournalWriter, read_entries
from engine.schema.study import SearchEnded, Stage, StageEntered

EVENTS = [StageEntered(stage=Stage.SEARCH, note="äöü ×"), SearchEnded(reason="line\nbreak")]


def test_what_is_appended_is_read_back(tmp_path: Path) -> None:
    """Reading gives the appended events in order, with their epoch and number."""
    writer = JournalWriter(tmp_path, 3)
    for index, event in enumerate(EVENTS):
        writer.append(event, at=100.0 + index)
    writer.close()
    entries = list(read_entries(tmp_path))
    assert [entry.data for entry in entries] == EVENTS
    assert [(entry.epoch, entry.n) for entry in entries] == [(3, 0), (3, 1)]


def test_segments_are_read_in_order_of_epochs(tmp_path: Path) -> None:
    """A later epoch's events follow an earlier one's."""
    for epoch in (1, 0):
        writer = JournalWriter(tmp_path, epoch)
        writer.append(SearchEnded(reason=str(epoch)), at=0.0)
        writer.close()
    assert [entry.epoch for entry in read_entries(tmp_path)] == [0, 1]


@pytest.mark.parametrize("cut", range(1, 12, 3))
def test_e36_a_torn_last_line_is_forgotten(tmp_path: Path, cut: int) -> None:
    """Cutting the last line anywhere loses that entry and nothing else."""
    writer = JournalWriter(tmp_path, 0)
    for event in EVENTS:
        writer.append(event, at=0.0)
    writer.close()
    segment = tmp_path / "000000.jsonl"
    segment.write_bytes(segment.read_bytes()[:-cut])
    assert [entry.data for entry in read_entries(tmp_path)] == EVENTS[:1]


@pytest.mark.parametrize("garbage", [b"{}", b"not json", b'{"v": 1, "epoch": 0}', b"\xff\xfe"])
def test_e36_a_broken_line_inside_names_file_and_line(tmp_path: Path, garbage: bytes) -> None:
    """A line that is not the last and does not parse is an error with its number."""
    writer = JournalWriter(tmp_path, 0)
    for event in EVENTS:
        writer.append(event, at=0.0)
    writer.close()
    segment = tmp_path / "000000.jsonl"
    first, rest = segment.read_bytes().split(b"\n", 1)
    segment.write_bytes(garbage + b"\n" + rest)
    with pytest.raises(IntegrityError) as caught:
        list(read_entries(tmp_path))
    assert caught.value.file == str(segment)
    assert "line 1" in caught.value.message
    assert first


def test_a_segment_is_private(tmp_path: Path) -> None:
    """Only the owner may read a segment."""
    JournalWriter(tmp_path, 0).close()
    assert (tmp_path / "000000.jsonl").stat().st_mode & 0o077 == 0


_LIMITED = """
import resource, sys
from pathlib import Path
from engine.errors import DiskFullError, InfrastructureError
from engine.journal.log import JournalWriter, read_entries
from engine.schema.study import SearchEnded
import signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
writer = JournalWriter(folder, 0)
writer.append(SearchEnded(reason="fits"), at=0.0)
resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
try:
    writer.append(SearchEnded(reason="x" * 500), at=1.0)
except InfrastructureError as error:
    print("refused", len(list(read_entries(folder))))
"""


def test_a_refused_append_leaves_what_was_there(tmp_path: Path) -> None:
    """When the file system refuses a line half way, earlier entries stay readable."""
    done = subprocess.run(
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.split() == ["refused", "1"]


def test_a_full_disk_has_its_own_error(tmp_path: Path) -> None:
    """ENOSPC becomes DiskFullError with the path and the next step."""
    (tmp_path / "000000.jsonl").symlink_to("/dev/full")
    writer = JournalWriter(tmp_path, 0)
    with pytest.raises(DiskFullError) as caught:
        writer.append(EVENTS[0], at=0.0)
    assert "resume" in (caught.value.hint or "")
