"""What one rank's probe said: every record on disk, counted, stamped and checked, never trusted."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any, BinaryIO

from slurm.agent.meter import RankMeter

_KINDS = frozenset(
    {"hello", "torch", "signature", "optimizer", "update", "skipped", "exception", "probe_error", "end"}
)
_MAX_ERRORS = 50
_MAX_ERROR_LENGTH = 300
_MAX_EXCEPTION_LENGTH = 256 * 1024


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


class RankRecord:
    """State of one rank. Times are nanoseconds of this agent's CLOCK_MONOTONIC, at arrival.

    `marks` holds (arrival, CPU seconds) of the first `wanted` updates.
    """

    def __init__(self, rank: int, folder: Path, *, wanted: int, limit_bytes: int | None) -> None:
        self.rank = rank
        self.protocol_errors: list[str] = []
        self._wanted = wanted
        self._limit_bytes = limit_bytes
        self._path = folder / f"updates-{rank}.jsonl"
        self._stream: BinaryIO | None = None
        self._errors_dropped = 0
        self._forget()

    def _forget(self) -> None:
        """Everything that one process of the rank said."""
        self.pid: int | None = None
        self.meter: RankMeter | None = None
        self.closed = False
        self.has_torch = False
        self.updates = 0
        self.end = False
        self.exception: dict[str, Any] | None = None
        self.first_update_ns: int | None = None
        self.last_update_ns: int | None = None
        self.marks: list[tuple[int, float | None]] = []
        self._next_seq = 0
        self._last_t_ns: int | None = None
        self._last_index: int | None = None

    @property
    def connected(self) -> bool:
        """Whether a hello was accepted."""
        return self.meter is not None

    @property
    def died(self) -> bool:
        """Whether the process is gone and never said that it ended."""
        return self.connected and self.closed and not self.end and self.meter is not None and self.meter.gone

    def note(self, error: str) -> None:
        """Remember a breach of the protocol; a flood of them is counted, not kept."""
        if len(self.protocol_errors) < _MAX_ERRORS:
            self.protocol_errors.append(error[:_MAX_ERROR_LENGTH])
        else:
            self._errors_dropped += 1

    def all_errors(self) -> list[str]:
        """The breaches, with a last line for those that were not kept."""
        if not self._errors_dropped:
            return list(self.protocol_errors)
        return [*self.protocol_errors, f"and {self._errors_dropped} more"]

    def open(self, hello: dict[str, Any], peer_pid: int, arrived_ns: int) -> None:
        """Accept the rank's one connection, in place of an earlier one."""
        self._close_stream()
        self._forget()
        self.meter = RankMeter(peer_pid, self._limit_bytes)
        self.meter.sample()
        self.pid = _integer(hello.get("pid"))
        try:
            self._stream = self._path.open("wb")
        except OSError as error:
            self._lose(error)
        self._keep(hello, arrived_ns)

    def take(self, line: bytes, arrived_ns: int) -> None:
        """Note one line of the connection."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            self.note(f"bad JSON: {error}: {line[:80]!r}")
            return
        if not isinstance(record, dict):
            self.note(f"not an object: {line[:80]!r}")
            return
        kind = record.get("k")
        if not isinstance(kind, str) or kind not in _KINDS:
            self.note(f"unknown kind: {str(kind)[:80]!r}")
            return
        if kind == "hello":
            self.note("second hello")
        self._keep(record, arrived_ns)
        if kind == "torch":
            self.has_torch = True
        elif kind == "update":
            self._take_update(record, arrived_ns)
        elif kind == "exception":
            self._take_exception(record)
        elif kind == "end":
            self._take_end(record)

    def close(self) -> None:
        """The connection is over."""
        self.closed = True
        if self.meter is not None:
            self.meter.sample()
        self._close_stream()

    def _keep(self, record: dict[str, Any], arrived_ns: int) -> None:
        self._check_order(record)
        if self._stream is not None:
            record["arrived_ns"] = arrived_ns
            try:
                self._stream.write(json.dumps(record).encode() + b"\n")
                self._stream.flush()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        """The disk takes no more: go on counting, and say that the file is not complete."""
        self._close_stream()
        self.note(f"{self._path.name} cannot be written: {error.strerror or error}")

    def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with contextlib.suppress(OSError):  # what could not be written the first time
                stream.close()

    def _check_order(self, record: dict[str, Any]) -> None:
        kind = record.get("k")
        if "rank" in record and record["rank"] != self.rank:
            self.note(f"{kind}: rank {record['rank']!r} on the connection of rank {self.rank}")
        seq = _integer(record.get("seq"))
        if seq is None:
            self.note(f"{kind}: seq {record.get('seq')!r} is no integer")
        else:
            if seq != self._next_seq:
                self.note(f"{kind}: seq {seq} where {self._next_seq} was due")
            self._next_seq = seq + 1
        t_ns = _integer(record.get("t_ns"))
        if t_ns is None:
            self.note(f"{kind}: t_ns {record.get('t_ns')!r} is no integer")
            return
        if self._last_t_ns is not None and t_ns < self._last_t_ns:
            self.note(f"{kind}: t_ns went back from {self._last_t_ns} to {t_ns}")
        self._last_t_ns = t_ns

    def _take_update(self, record: dict[str, Any], arrived_ns: int) -> None:
        if self.end:
            self.note("update after the end")
        index = _integer(record.get("i"))
        if index is None:
            self.note(f"update: i {record.get('i')!r} is no integer")
        else:
            if self._last_index is not None and index != self._last_index + 1:
                self.note(f"update: i {index} after {self._last_index}")
            self._last_index = index
        self.updates += 1
        if self.meter is not None:
            self.meter.note_update()
        self.first_update_ns = self.first_update_ns or arrived_ns
        self.last_update_ns = arrived_ns
        if len(self.marks) < self._wanted and self.meter is not None:
            self.marks.append((arrived_ns, self.meter.read_cpu()))

    def _take_exception(self, record: dict[str, Any]) -> None:
        if self.meter is not None:
            self.meter.note_exception()
        if len(json.dumps(record)) > _MAX_EXCEPTION_LENGTH:
            self.note("exception: record too large for the result; see the updates file")
            return
        self.exception = record

    def _take_end(self, record: dict[str, Any]) -> None:
        if record.get("updates") != self.updates:
            self.note(f"end: says {record.get('updates')!r} updates, {self.updates} arrived")
        self.end = True
        if self.meter is not None:
            self.meter.sample()
