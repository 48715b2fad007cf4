"""Lines, records and files: what arrives is kept, counted and checked."""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.agent.durable import claim_json, touch_json, write_json
from slurm.agent.listener import Connection
from slurm.agent.meter import RankMeter
from slurm.agent.procfs import descendants, is_descendant, is_same_process, read_stat
from slurm.agent.ranks import RankRecord


@given(
    lines=st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    rest=st.binary(max_size=10).map(lambda line: line.replace(b"\n", b"")),
    cuts=st.lists(st.integers(0, 300), max_size=12),
)
def test_lines_do_not_depend_on_packets(lines: list[bytes], rest: bytes, cuts: list[int]) -> None:
    """However the stream is cut, the same lines come out, and an unfinished one stays."""
    stream = b"".join(line + b"\n" for line in lines) + rest
    places = sorted({0, len(stream), *(cut for cut in cuts if cut <= len(stream))})
    left, right = socket.socketpair()
    with left, right:
        connection = Connection(left, os.getpid())
        found: list[bytes] = []
        for start, end in itertools.pairwise(places):
            found += connection.lines(stream[start:end])
    assert found == lines
    assert bytes(connection.buffer) == rest


@pytest.fixture
def record(tmp_path: Path) -> Iterator[RankRecord]:
    """Rank 3, said by this process."""
    record = RankRecord(3, tmp_path, wanted=2, limit_bytes=None)
    record.open({"k": "hello", "seq": 0, "t_ns": 0, "rank": 3, "pid": os.getpid()}, os.getpid(), 10)
    yield record
    record.close()


def _take(record: RankRecord, content: dict[str, Any], arrived_ns: int = 11) -> None:
    record.take(json.dumps(content).encode(), arrived_ns)


def test_stamp_is_ours(record: RankRecord, tmp_path: Path) -> None:
    """A record cannot bring its own time of arrival."""
    _take(record, {"k": "update", "seq": 1, "t_ns": 1, "i": 0, "arrived_ns": -5}, 77)
    lines = [json.loads(line) for line in (tmp_path / "updates-3.jsonl").read_text().splitlines()]
    assert [line["arrived_ns"] for line in lines] == [10, 77]
    assert (record.first_update_ns, record.last_update_ns) == (77, 77)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        ({"k": "update", "seq": 1, "t_ns": -1, "i": 0}, "t_ns went back"),
        ({"k": "update", "seq": True, "t_ns": 1, "i": 0}, "no integer"),
        ({"k": "update", "seq": 1, "t_ns": 1.5, "i": 0}, "no integer"),
        ({"k": "update", "seq": 1, "t_ns": 1}, "i None is no integer"),
        ({"k": "torch", "seq": 0, "t_ns": 1}, "seq 0 where 1 was due"),
        ({"k": "torch", "seq": 1, "t_ns": 1, "rank": 4}, "rank 4 on the connection of rank 3"),
        ({"k": "hello", "seq": 1, "t_ns": 1, "rank": 3}, "second hello"),
        ({"k": "end", "seq": 1, "t_ns": 1, "updates": 9}, "says 9 updates, 0 arrived"),
        ({"k": ["update"]}, "unknown kind"),
    ],
)
def test_breach_is_noted(record: RankRecord, content: dict[str, Any], error: str) -> None:
    """Each breach of the protocol leaves one note, and nothing is raised."""
    _take(record, content)
    assert len(record.protocol_errors) == 1
    assert error in record.protocol_errors[0]


def test_updates_out_of_order_are_noted(record: RankRecord) -> None:
    """A repeated update is counted and named."""
    _take(record, {"k": "update", "seq": 1, "t_ns": 1, "i": 0})
    _take(record, {"k": "update", "seq": 2, "t_ns": 2, "i": 0})
    assert record.protocol_errors == ["update: i 0 after 0"]
    assert record.updates == 2


def test_flood_of_errors_is_counted(record: RankRecord) -> None:
    """Notes are bounded in number and length, and the rest is counted."""
    for _ in range(80):
        record.take(b"x" * 10_000, 11)
    errors = record.all_errors()
    assert len(errors) == 51
    assert errors[-1] == "and 30 more"
    assert max(map(len, errors)) <= 300


def test_meter_agrees_with_the_process() -> None:
    """CPU time from outside is what the process sees itself, to the kernel's tick."""
    meter = RankMeter(os.getpid(), None)
    before = sum(os.times()[:2])
    meter.sample()
    after = sum(os.times()[:2])
    assert meter.cpu_s is not None
    assert before - 0.02 <= meter.cpu_s <= after + 0.02
    assert meter.peak_vm_hwm_bytes is not None
    assert meter.limit_seen_bytes is None


def test_ancestry_of_processes() -> None:
    """A process descends from its parent, not from itself, and start times tell recycled ids apart."""
    stat = read_stat(os.getpid())
    assert stat is not None
    assert is_descendant(os.getpid(), os.getppid())
    assert not is_descendant(os.getpid(), os.getpid())
    assert not is_descendant(os.getppid(), os.getpid())
    assert os.getpid() in {process.pid for process in descendants(os.getppid())}
    assert is_same_process(os.getpid(), stat.start_ticks)
    assert not is_same_process(os.getpid(), stat.start_ticks + 1)


def test_claim_is_won_once(tmp_path: Path) -> None:
    """The first writer of a claim wins, the second changes nothing; no temporary file is left."""
    path = tmp_path / "job.json"
    assert claim_json(path, {"who": 1})
    assert not claim_json(path, {"who": 2})
    assert json.loads(path.read_text()) == {"who": 1}
    write_json(path, {"who": 3})
    touch_json(path, {"who": 4})
    assert json.loads(path.read_text()) == {"who": 4}
    assert [entry.name for entry in tmp_path.iterdir()] == ["job.json"]
