from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.trial.evidence import read_evidence
from tests.evidence import folders

FILES = ("result.json", "exit-0.json", "updates-0.jsonl", "launcher.log")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


def test_a_healthy_folder_is_read_in_full(tmp_path: Path) -> None:
    """Every part of the wire records arrives in the typed evidence, without a note."""
    evidence = read_evidence(folders.write(tmp_path), folders.plan(tmp_path))
    assert evidence.notes == ()
    assert (evidence.ended, evidence.exit_code, evidence.world_size) == ("exited", 0, 2)
    assert evidence.log_tail == "hello\nworld\n"
    rank = evidence.ranks[1]
    assert (rank.protocol_errors, rank.probe_errors) == ((), ("clip: TypeError: odd",))
    assert rank.unavailable == {"gpu": "none", "clip": "TypeError: odd"}
    assert [update.index for update in rank.updates] == [0, 1, 2, 3]
    update = rank.updates[2]
    assert (update.data_hash, update.label_hash) == (19, (1 << 64) - 1)
    assert update.phases.data is None
    assert update.phases.eval == 0
    assert update.hyper == (({"lr": 0.1, "betas": (0.9, 0.99), "fused": None},),)
    assert rank.start_signature is not None
    assert rank.start_signature.parameters[0].content_hash == 255
    assert rank.start_signature.parameters[0].numel == 16
    assert rank.optimizers[0].groups[0].numel == 16
    assert rank.agent is not None
    assert rank.agent.window is not None
    assert (rank.agent.window.first, rank.agent.window.last) == (2, 3)
    assert rank.end is not None


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file_is_a_note(tmp_path: Path, name: str) -> None:
    """An absent file leaves a note that names it, and everything else is read."""
    (folders.write(tmp_path) / name).unlink()
    evidence = read_evidence(tmp_path, folders.plan(tmp_path))
    notes = (*evidence.notes, *(error for rank in evidence.ranks for error in rank.protocol_errors))
    assert any(name in note for note in notes)
    assert evidence.rank(1) is not None
    if name == "result.json":
        assert evidence.ended == "no_result"
        assert evidence.wall_s is None


def test_a_result_of_another_trial_does_not_count(tmp_path: Path) -> None:
    """A result with another token is as good as none."""
    folders.write(tmp_path)
    (tmp_path / "result.json").write_text(json.dumps({**folders.result(), "token": "guess"}))
    evidence = read_evidence(tmp_path, folders.plan(tmp_path))
    assert evidence.ended == "no_result"
    assert any("another trial" in note for note in evidence.notes)


def test_a_cut_off_line_loses_only_itself(tmp_path: Path) -> None:
    """The last line cut in half is an error of that rank; the lines before it stand."""
    path = folders.write(tmp_path) / "updates-0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    rank = read_evidence(tmp_path, folders.plan(tmp_path)).ranks[0]
    assert len(rank.updates) == folders.TOTAL
    assert rank.end is None
    assert any("not JSON" in error for error in rank.protocol_errors)


def test_numbers_that_are_not_finite_are_named_not_kept(tmp_path: Path) -> None:
    """NaN never enters a record: its field is named in `nonfinite`."""
    records = folders.rank_records(0)
    records[5]["loss"] = [float("nan"), 1.0]
    records[5]["grad_norm"] = float("inf")
    folders.write(tmp_path)
    (tmp_path / "updates-0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    update = read_evidence(tmp_path, folders.plan(tmp_path)).ranks[0].updates[2]
    assert update.loss == (1.0,)
    assert update.grad_norm is None
    assert update.nonfinite == ("grad_norm", "loss")


def test_repeated_and_missing_updates_are_noted(tmp_path: Path) -> None:
    """The first record of an update counts; a gap or a repetition is an error of the stream."""
    records = folders.rank_records(0)
    records.insert(4, {**records[3], "wall_ns": 1})
    folders.write(tmp_path)
    (tmp_path / "updates-0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    rank = read_evidence(tmp_path, folders.plan(tmp_path)).ranks[0]
    assert rank.updates[0].wall_ns == 100_000_000
    assert any("update 0 came where 1 was expected" in error for error in rank.protocol_errors)


def test_a_fifo_in_place_of_a_file_does_not_block(tmp_path: Path) -> None:
    """Something that is no regular file is noted, never opened."""
    path = folders.write(tmp_path) / "launcher.log"
    path.unlink()
    os.mkfifo(path)
    evidence = read_evidence(tmp_path, folders.plan(tmp_path))
    assert any("not a regular file" in note for note in evidence.notes)


def test_an_empty_folder_gives_evidence_of_nothing(tmp_path: Path) -> None:
    """A trial that never started leaves no rank and no result."""
    evidence = read_evidence(tmp_path / "absent", folders.plan(tmp_path))
    assert evidence.ranks == ()
    assert evidence.ended == "no_result"
    assert evidence.log_path is None


def test_the_uncaught_exception_is_the_root(tmp_path: Path) -> None:
    """Of several exceptions the uncaught one is kept, else the last."""
    caught = {"k": "exception", "phase": "forward", "type": "OSError", "mro": ["OSError"], "message": "first"}
    uncaught = {
        **caught,
        "phase": "uncaught",
        "message": "second",
        "frames": [{"file": "a", "line": 3, "name": "f"}],
    }
    folders.write(tmp_path)
    path = tmp_path / "updates-0.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in (uncaught, caught)))
    exception = read_evidence(tmp_path, folders.plan(tmp_path)).ranks[0].exception
    assert exception is not None
    assert exception.message == "second"
    assert exception.frames[0].line == 3


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_files_never_raise(data: st.DataObject) -> None:
    """Random bytes, cuts and random JSON in any file give evidence, never an exception."""
    with tempfile.TemporaryDirectory() as name:
        folder = folders.write(Path(name))
        for file in FILES:
            path = folder / file
            damage = data.draw(st.sampled_from(["none", "bytes", "cut", "json"]))
            if damage == "bytes":
                path.write_bytes(data.draw(st.binary(max_size=60)))
            elif damage == "cut":
                content = path.read_bytes()
                path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
            elif damage == "json":
                path.write_text(json.dumps(data.draw(JSON)))
        evidence = read_evidence(folder, folders.plan(folder))
        assert evidence.trial_id == "t1"


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_fields_of_the_wrong_type_never_raise(data: st.DataObject) -> None:
    """Any field of any record may hold any JSON value."""
    with tempfile.TemporaryDirectory() as name:
        folder = folders.write(Path(name))
        records = folders.rank_records(0)
        for record in records:
            key = data.draw(st.sampled_from(sorted(record)))
            if key != "k":
                record[key] = data.draw(JSON)
        (folder / "updates-0.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
        evidence = read_evidence(folder, folders.plan(folder))
        assert evidence.ranks[0].rank == 0


@pytest.mark.parametrize("lines", [3, 20_000])
def test_lines_of_a_long_log_keep_their_numbers(tmp_path: Path, lines: int) -> None:
    """Only the end of a log is read, and each of its lines has the number that it has in the file."""
    folders.write(tmp_path)
    (tmp_path / "launcher.log").write_text("".join(f"line {number}\n" for number in range(1, lines + 1)))
    evidence = read_evidence(tmp_path, folders.plan(tmp_path))
    assert evidence.log_first_line is not None
    last = evidence.log_tail.split("\n")[-2]
    assert last == f"line {lines}"
    assert evidence.log_first_line + evidence.log_tail.count("\n") - 1 == lines
