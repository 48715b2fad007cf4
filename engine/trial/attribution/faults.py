"""Candidate causes: what the probe recorded of each rank, and what the log adds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from engine.schema.evidence import (
    CudaMemory,
    ExceptionRecord,
    Frame,
    MemoryReading,
    RankEvidence,
    RunEvidence,
)
from engine.schema.trial import EvidenceLine
from engine.trial.attribution.logs import LogLine, find_line
from engine.trial.attribution.tracebacks import LoggedException, read_bare_exceptions, read_tracebacks

_LONGEST_CAUSE = 240


@dataclass(frozen=True)
class Fault:
    """One exception of one rank, at the root of its chain; frames from the outermost to the innermost.

    `order` sorts faults by when they happened, as far as that is known.
    """

    rank: int | None
    type: str
    message: str
    frames: tuple[Frame, ...]
    bases: tuple[str, ...]
    phase: str | None
    evidence: tuple[EvidenceLine, ...]
    order: tuple[float, ...]
    memory: MemoryReading | None = None
    cuda_memory: CudaMemory | None = None

    @property
    def is_recorded(self) -> bool:
        """Whether the probe recorded it; else it is only printed, and may have been caught."""
        return self.phase is not None

    @property
    def class_name(self) -> str:
        """Type without its module."""
        return self.type.rpartition(".")[2]

    @property
    def text(self) -> str:
        """Type and message, for patterns."""
        return f"{self.type}: {self.message}"

    def words(self) -> str:
        """The exception's own words on one line."""
        joined = " ".join(self.text.split())
        return joined if len(joined) <= _LONGEST_CAUSE else joined[: _LONGEST_CAUSE - 1] + "…"

    def where(self) -> str:
        """Whose exception it is, to begin a sentence with."""
        return "the run" if self.rank is None else f"rank {self.rank}"


def collect_faults(evidence: RunEvidence, lines: Sequence[LogLine]) -> list[Fault]:
    """Faults of all ranks, the earliest first; a rank with a probe record needs no log."""
    logged = read_tracebacks(lines)
    if not logged and all(rank.exception is None for rank in evidence.ranks):
        logged = read_bare_exceptions(lines)
    recorded = [
        _recorded(rank, rank.exception, logged, lines, evidence.last_update_ns(rank))
        for rank in evidence.ranks
        if rank.exception is not None
    ]
    known = {fault.rank for fault in recorded}
    texts = {fault.text.partition("\n")[0] for fault in recorded}
    read = [
        _from_log(exception, index)
        for index, exception in enumerate(logged)
        if exception.rank not in known or exception.rank is None
    ]
    repeated = [fault for fault in read if fault.rank is None and _first_line(fault) in texts]
    return sorted([*recorded, *(fault for fault in read if fault not in repeated)], key=lambda f: f.order)


def _first_line(fault: Fault) -> str:
    return f"{fault.class_name}: {fault.message}".partition("\n")[0]


def _recorded(
    rank: RankEvidence,
    record: ExceptionRecord,
    logged: Sequence[LoggedException],
    lines: Sequence[LogLine],
    last_ns: int | None,
) -> Fault:
    first_line = record.message.strip().partition("\n")[0]
    printed = next((each for each in logged if _is_same(each, rank.rank, record, first_line)), None)
    root = printed.root() if printed is not None else None
    chained = root is not None and root is not printed
    quoted = root.line if root is not None else find_line(lines, first_line, rank.rank)
    own = EvidenceLine(line=None, text=f"rank {rank.rank}, {record.phase}: {record.type}: {first_line}"[:400])
    return Fault(
        rank=rank.rank,
        type=root.type if root is not None and chained else record.type,
        message=root.message if root is not None and chained else record.message,
        frames=root.frames if root is not None and (chained or root.frames) else record.frames,
        bases=() if chained else record.bases,
        phase=record.phase,
        evidence=(quoted.quote(),) if quoted is not None else (own,),
        order=(0.0, _or_last(record.update), _or_last(last_ns), float(rank.rank)),
        memory=record.memory,
        cuda_memory=record.cuda_memory,
    )


def _from_log(exception: LoggedException, index: int) -> Fault:
    root = exception.root()
    return Fault(
        rank=exception.rank,
        type=root.type,
        message=root.message,
        frames=root.frames,
        bases=(),
        phase=None,
        evidence=(root.line.quote(),),
        order=(1.0, float(index)),
    )


def _is_same(printed: LoggedException, rank: int, record: ExceptionRecord, first_line: str) -> bool:
    named = printed.class_name == record.type.rpartition(".")[2]
    return printed.rank in (rank, None) and named and printed.message.partition("\n")[0] == first_line


def _or_last(value: int | None) -> float:
    return math.inf if value is None else float(value)
