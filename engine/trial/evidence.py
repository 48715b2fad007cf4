"""Reads what a finished trial left behind into one typed record.

Files may be missing, cut off or forged: each problem is a note or an error line in the evidence, never an
exception. result.json only counts when it carries the trial id and the token of the plan.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path
from typing import Any, get_args

from engine.schema.evidence import (
    AgentReading,
    Ended,
    ExceptionRecord,
    OptimizerRecord,
    RankEvidence,
    RunEvidence,
    SignatureRecord,
    UpdateRecord,
    WindowReading,
)
from engine.schema.plan import LaunchPlan
from engine.trial import host_records, probe_records
from engine.trial.json_fields import Fields, Notes, clean_text, integer, parse_object

LOG_NAME = "launcher.log"
_LOG_TAIL_BYTES = 64 * 1024
_FILE_LIMIT_BYTES = 256 * 1024 * 1024
_BLOCK_BYTES = 1024 * 1024
_ANNOUNCEMENTS = ("step", "skipped")
"""Records that only say early what the next update record holds in full."""

_RANK_FILE = re.compile(r"^(?:updates|exit)-(\d{1,6})\.jsonl?$")


def read_evidence(trial_dir: Path, plan: LaunchPlan) -> RunEvidence:
    """Everything that is known about one run.

    Args:
        trial_dir: The trial folder (result.json, exit-*.json, updates-*.jsonl, launcher.log).
        plan: What the agent was asked to do; says which ranks and updates to expect.

    Returns:
        The evidence; `ended` is "no_result" where result.json is absent or not of this plan.
    """
    notes = Notes()
    result = _read_result(trial_dir, plan, notes)
    per_rank = {} if result is None else _ranks_of_result(result)
    found = _ranks_with_files(trial_dir, notes) | set(per_rank)
    ranks = tuple(_read_rank(trial_dir, rank, per_rank.get(rank)) for rank in sorted(found))
    tail = _log_tail(trial_dir / LOG_NAME, notes)
    log_text, log_first_line = tail or ("", None)
    return RunEvidence(
        trial_id=plan.trial_id,
        ended=_ended(result),
        exit_code=None if result is None else result.integer("exit_code"),
        signal=None if result is None else result.integer("signal"),
        wall_s=None if result is None else result.number("wall_s"),
        started_at=None if result is None else result.number("started_at"),
        host=None if result is None else result.text("host"),
        launch_error=None if result is None else result.text("launch_error"),
        hosts=() if result is None else host_records.read_hosts(result),
        slurm=None if result is None else host_records.read_slurm(result),
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        cpus_per_rank=plan.cpus_per_rank,
        total_updates=plan.total_updates,
        measured_updates=plan.measured_updates,
        device=plan.device,
        memory_limit_bytes=plan.memory_limit_bytes,
        ranks=ranks,
        log_path=str(trial_dir / LOG_NAME) if tail is not None else None,
        log_tail=log_text,
        log_first_line=log_first_line,
        notes=notes.lines(),
    )


def _read_bytes(path: Path, notes: Notes, *, tail: int | None = None) -> bytes | None:
    """A regular file, whole or its last `tail` bytes; None with a note where it cannot be read."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            notes.add(f"{path.name}: not a regular file")
            return None
        with path.open("rb") as stream:
            if tail is not None:
                stream.seek(max(0, status.st_size - tail))
                return stream.read(tail)
            if status.st_size > _FILE_LIMIT_BYTES:
                notes.add(f"{path.name}: {status.st_size} bytes, only the first {_FILE_LIMIT_BYTES} are read")
            return stream.read(_FILE_LIMIT_BYTES)
    except FileNotFoundError:
        notes.add(f"{path.name}: missing")
    except OSError as error:
        notes.add(f"{path.name}: {error.strerror or error}")
    return None


def _read_object(path: Path, notes: Notes) -> dict[str, Any] | None:
    content = _read_bytes(path, notes)
    return None if content is None else parse_object(content.decode("utf-8", "replace"), path.name, notes)


def _read_result(trial_dir: Path, plan: LaunchPlan, notes: Notes) -> Fields | None:
    data = _read_object(trial_dir / "result.json", notes)
    if data is None:
        return None
    if data.get("trial_id") != plan.trial_id or data.get("token") != plan.token:
        notes.add("result.json: belongs to another trial (trial id or token differ)")
        return None
    return Fields(data, "result.json", notes)


def _ended(result: Fields | None) -> Ended:
    if result is None:
        return "no_result"
    word = result.text("ended")
    for known in get_args(Ended):
        if word == known:
            return known  # type: ignore[no-any-return]
    result.notes.add(f"result.json: unknown end {word!r}")
    return "no_result"


def _ranks_of_result(result: Fields) -> dict[int, Fields]:
    entries = {}
    for entry in result.children("ranks"):
        rank = entry.integer("rank")
        if rank is None or not 0 <= rank < 1_000_000:
            result.notes.add(f"{entry.where}: a rank entry without a rank number")
        else:
            entries[rank] = entry
    return entries


def _ranks_with_files(trial_dir: Path, notes: Notes) -> set[int]:
    try:
        names = [path.name for path in trial_dir.iterdir()]
    except OSError as error:
        notes.add(f"trial folder: {error.strerror or error}")
        return set()
    matches = (_RANK_FILE.match(name) for name in names)
    return {int(match.group(1)) for match in matches if match}


def _log_tail(path: Path, notes: Notes) -> tuple[str, int | None] | None:
    """The end of the log, and the number of its first line where that can be counted."""
    content = _read_bytes(path, notes, tail=_LOG_TAIL_BYTES)
    if content is None:
        return None
    return clean_text(content.decode("utf-8", "replace")), _first_line(path, len(content))


def _first_line(path: Path, tail_bytes: int) -> int | None:
    """Number of the line in which the last `tail_bytes` of a file begin; None beyond a bounded effort."""
    try:
        before = path.stat().st_size - tail_bytes
        if not 0 <= before <= _FILE_LIMIT_BYTES:
            return None
        lines = 0
        with path.open("rb") as stream:
            while before > 0 and (block := stream.read(min(before, _BLOCK_BYTES))):
                lines += block.count(b"\n")
                before -= len(block)
    except OSError:
        return None
    return lines + 1 if before == 0 else None


class _RankBuilder:
    """Collects the records of one rank in the order they came."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.notes = Notes()
        self.values: dict[str, Any] = {}
        self.unavailable: dict[str, str] = {}
        self.signatures: dict[str, SignatureRecord] = {}
        self.optimizers: dict[int, OptimizerRecord] = {}
        self.updates: dict[int, UpdateRecord] = {}
        self.exceptions: list[ExceptionRecord] = []
        self.probe_errors: list[str] = []

    def add(self, fields: Fields) -> None:
        """Take one record."""
        kind = fields.data.get("k")
        if kind == "hello":
            self._once("hello", probe_records.read_hello(fields))
        elif kind == "torch":
            self._once("torch", probe_records.read_torch(fields))
            self.unavailable.update(probe_records.read_unavailable(fields))
        elif kind == "signature":
            signature = probe_records.read_signature(fields)
            if signature is not None:
                self.signatures[signature.when] = signature  # a larger model may appear later
        elif kind == "optimizer":
            optimizer = probe_records.read_optimizer(fields)
            if optimizer is not None:
                self.optimizers[optimizer.index] = optimizer
        elif kind == "update":
            self._update(probe_records.read_update(fields))
        elif kind == "exception":
            self.exceptions.append(probe_records.read_exception(fields))
        elif kind == "end":
            self._once("end", probe_records.read_end(fields))
        else:
            self._other(fields, kind)

    def _once(self, name: str, value: object) -> None:
        if name in self.values:
            self.notes.add(f"rank {self.rank}: a second {name} record")
        elif value is not None:
            self.values[name] = value

    def _update(self, update: UpdateRecord | None) -> None:
        if update is None:
            return
        if update.index in self.updates or update.index != len(self.updates):
            self.notes.add(
                f"rank {self.rank}: update {update.index} came where {len(self.updates)} was expected"
            )
        self.updates.setdefault(update.index, update)

    def _other(self, fields: Fields, kind: object) -> None:
        if kind in _ANNOUNCEMENTS:
            return
        place = clean_text(str(fields.data.get("where", kind)))[:80]
        text = clean_text(str(fields.data.get("error", "")))[:400]
        self.probe_errors.append(f"{place}: {text}")
        if kind == "probe_error":
            self.unavailable.setdefault(place, text)

    def root_exception(self) -> ExceptionRecord | None:
        """The one that ended the rank: an uncaught one first, else the last that was seen."""
        uncaught = [exception for exception in self.exceptions if exception.phase == "uncaught"]
        ordered = uncaught or self.exceptions[-1:]
        return ordered[0] if ordered else None


def _read_rank(trial_dir: Path, rank: int, entry: Fields | None) -> RankEvidence:
    builder = _RankBuilder(rank)
    name = f"updates-{rank}.jsonl"
    content = _read_bytes(trial_dir / name, builder.notes) or b""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            where = f"{name}:{number}"
            data = parse_object(line.decode("utf-8", "replace"), where, builder.notes)
            if data is not None:
                builder.add(Fields(data, where, builder.notes))
    exit_data = _read_object(trial_dir / f"exit-{rank}.json", builder.notes)
    exit_fields = None if exit_data is None else Fields(exit_data, f"exit-{rank}.json", builder.notes)
    sources = [fields for fields in (entry, exit_fields) if fields is not None]
    errors = [error for fields in sources for error in fields.texts("protocol_errors") or ()]
    exception = builder.root_exception() or _exception_of_agent(sources)
    agent = _agent_reading(sources)
    return RankEvidence(
        rank=rank,
        node=next((node for fields in sources if (node := fields.integer("node")) is not None), None),
        hello=builder.values.get("hello"),
        torch=builder.values.get("torch"),
        unavailable=builder.unavailable,
        start_signature=builder.signatures.get("start"),
        end_signature=builder.signatures.get("end"),
        optimizers=tuple(builder.optimizers[index] for index in sorted(builder.optimizers)),
        updates=tuple(builder.updates[index] for index in sorted(builder.updates)),
        exception=exception,
        end=builder.values.get("end"),
        agent=agent,
        protocol_errors=tuple(dict.fromkeys((*errors, *builder.notes.lines()))),
        probe_errors=tuple(builder.probe_errors[:40]),
    )


def _exception_of_agent(sources: list[Fields]) -> ExceptionRecord | None:
    for fields in sources:
        exception = fields.child("exception")
        if exception is not None:
            return probe_records.read_exception(exception)
    return None


def _agent_reading(sources: list[Fields]) -> AgentReading | None:
    """The agent's view of a rank: result.json first, exit-<rank>.json where it is silent."""
    if not sources:
        return None
    merged: dict[str, Any] = {}
    for fields in sources:
        for name, value in fields.data.items():
            if value is not None:
                merged.setdefault(name, value)
    view = Fields(merged, sources[0].where, sources[0].notes)
    return AgentReading(
        pid=view.integer("pid"),
        hello=view.boolean("hello"),
        updates=view.integer("updates"),
        end=view.boolean("end"),
        exit_code=view.integer("exit_code"),
        first_update_ns=view.integer("first_update_ns"),
        last_update_ns=view.integer("last_update_ns"),
        cpu_s=view.number("cpu_s"),
        peak_vm_data_bytes=view.integer("peak_vm_data_bytes"),
        peak_vm_hwm_bytes=view.integer("peak_vm_hwm_bytes"),
        limit_seen_bytes=view.integer("limit_seen_bytes"),
        limit_lifted=view.boolean("limit_lifted"),
        window=_window(view.child("window")),
    )


def _window(fields: Fields | None) -> WindowReading | None:
    if fields is None:
        return None
    bounds = fields.data.get("updates")
    numbers = [integer(bound) for bound in bounds] if isinstance(bounds, list) else []
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        fields.notes.add(f"{fields.where}: no bounds of the window")
        return None
    return WindowReading(
        first=numbers[0],
        last=numbers[1],
        elapsed_ns=fields.integer("elapsed_ns"),
        cpu_s=fields.number("cpu_s"),
    )
