"""The append-only files between engine and holder, with what crashes and network disks do to them."""

from __future__ import annotations

import json
from pathlib import Path

from slurm.held.holder.ledger import LedgerReader, append


def _kinds(entries: list[dict[str, object]]) -> list[object]:
    return [entry["kind"] for entry in entries]


def test_entries_are_read_once_and_in_order(tmp_path: Path) -> None:
    """A look gives what was added since the last one, numbered from 1."""
    path = tmp_path / "events.jsonl"
    reader = LedgerReader(path)
    assert reader.new() == []
    assert [append(path, "a", word="one"), append(path, "b")] == [1, 2]
    first = reader.new()
    assert _kinds(first) == ["a", "b"]
    assert first[0]["word"] == "one"
    append(path, "c")
    assert _kinds(reader.new()) == ["c"]
    assert reader.new() == []


def test_another_reader_replays_everything(tmp_path: Path) -> None:
    """A process that comes later sees the same entries in the same order."""
    path = tmp_path / "events.jsonl"
    for kind in "abc":
        append(path, kind)
    assert _kinds(LedgerReader(path).new()) == ["a", "b", "c"]


def test_torn_last_line_waits_for_its_rest(tmp_path: Path) -> None:
    """Half a line is no entry; once its rest has arrived it is one."""
    path = tmp_path / "events.jsonl"
    append(path, "a")
    whole = json.dumps({"seq": 2, "at": 0.0, "kind": "b"}).encode() + b"\n"
    reader = LedgerReader(path)
    assert _kinds(reader.new()) == ["a"]
    for cut in range(1, len(whole)):
        with path.open("ab") as stream:
            stream.write(whole[cut - 1 : cut])
        assert reader.new() == []
    with path.open("ab") as stream:
        stream.write(b"\n")
    assert _kinds(reader.new()) == ["b"]


def test_writer_after_a_crash_closes_the_torn_line(tmp_path: Path) -> None:
    """What a predecessor did not finish is skipped, its number is used again, nothing after it is lost."""
    path = tmp_path / "orders.jsonl"
    append(path, "a")
    with path.open("ab") as stream:
        stream.write(b'{"seq": 2, "at": 1.0, "ki')
    reader = LedgerReader(path)
    assert _kinds(reader.new()) == ["a"]
    assert append(path, "b") == 2
    assert _kinds(reader.new()) == ["b"]
    assert _kinds(LedgerReader(path).new()) == ["a", "b"]


def test_hole_holds_back_what_follows(tmp_path: Path) -> None:
    """A part that has not arrived yet (zeros on a network disk) is waited for, not skipped."""
    path = tmp_path / "events.jsonl"
    for kind in "abc":
        append(path, kind)
    whole = path.read_bytes()
    first, second, _third, _end = whole.split(b"\n")
    hole = whole.replace(second, b"\0" * len(second))
    path.write_bytes(hole)
    reader = LedgerReader(path)
    assert _kinds(reader.new()) == ["a"]
    assert reader.new() == []
    path.write_bytes(whole)
    assert _kinds(reader.new()) == ["b", "c"]
    assert json.loads(first)["seq"] == 1


def test_foreign_lines_are_ignored(tmp_path: Path) -> None:
    """A line that is JSON but no entry is no reason to stop."""
    path = tmp_path / "orders.jsonl"
    path.write_bytes(b'[1]\n"word"\n{"kind": "x"}\n')
    append(path, "a")
    assert _kinds(LedgerReader(path).new()) == ["a"]
