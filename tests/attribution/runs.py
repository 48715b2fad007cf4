"""Runs as the evidence reader would show them, built from a few words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

from engine.schema.base import Record
from engine.schema.evidence import (
    AgentReading,
    CudaMemory,
    EndRecord,
    EventCounts,
    ExceptionRecord,
    Frame,
    HelloRecord,
    MemoryReading,
    PhaseTimes,
    RankEvidence,
    RunEvidence,
    UpdateRecord,
)

AnyRecord = TypeVar("AnyRecord", bound=Record)
GIB = 1 << 30
LOGS = Path(__file__).parent / "logs"


def log(name: str) -> str:
    """A real launcher log: two ranks, torch 2.13, gloo."""
    return (LOGS / f"{name}.log").read_text(encoding="utf-8")


def blank(record: type[AnyRecord], **given: Any) -> AnyRecord:
    """A record in which nothing was seen but what is given."""
    unseen = {name: None for name, field in record.model_fields.items() if field.is_required()}
    return record(**(unseen | given))


def memory(vm_data: int | None = None) -> MemoryReading:
    """A reading of the process."""
    return blank(MemoryReading, vm_data_bytes=vm_data)


def update(index: int, *, loss: float | None = 1.0) -> UpdateRecord:
    """An update; loss None = it was not finite."""
    return blank(
        UpdateRecord,
        index=index,
        phases=blank(PhaseTimes),
        counts=blank(EventCounts),
        shapes=(),
        loss=None if loss is None else (loss,),
        memory=memory(),
        nonfinite=("loss",) if loss is None else (),
    )


def exception(
    kind: str,
    message: str,
    *frames: tuple[str, int, str],
    at_update: int | None = 0,
    vm_data: int | None = None,
    cuda: CudaMemory | None = None,
    phase: str = "forward",
) -> ExceptionRecord:
    """What the probe says of an exception."""
    return ExceptionRecord(
        phase=phase,
        type=kind,
        bases=(kind, "Exception", "BaseException", "object"),
        message=message,
        frames=tuple(Frame(file=file, line=line, name=name) for file, line, name in frames),
        update=at_update,
        memory=memory(vm_data),
        cuda_memory=cuda,
    )


def rank(
    number: int,
    *,
    updates: int | tuple[float | None, ...] = 0,
    error: ExceptionRecord | None = None,
    end: bool = False,
    hello: bool = True,
    last_ns: int | None = None,
    exit_code: int | None = None,
    limit_lifted: bool | None = False,
) -> RankEvidence:
    """One rank; updates = how many, or their losses."""
    losses = (1.0,) * updates if isinstance(updates, int) else updates
    return RankEvidence(
        rank=number,
        hello=blank(HelloRecord, rank=number, argv=()) if hello else None,
        torch=None,
        unavailable={},
        start_signature=None,
        end_signature=None,
        optimizers=(),
        updates=tuple(update(index, loss=loss) for index, loss in enumerate(losses)),
        exception=error,
        end=EndRecord(updates=len(losses), reason="stopped", hooks_ok=True, clocks_ok=True) if end else None,
        agent=blank(
            AgentReading, hello=hello, exit_code=exit_code, last_update_ns=last_ns, limit_lifted=limit_lifted
        ),
    )


def run(*ranks: RankEvidence, **changes: Any) -> RunEvidence:
    """A run of two ranks and eight updates on CPU that exited with 1, unless said otherwise."""
    values: dict[str, Any] = {
        "trial_id": "t001",
        "ended": "exited",
        "exit_code": 1,
        "signal": None,
        "wall_s": 10.0,
        "started_at": 0.0,
        "host": "node",
        "launch_error": None,
        "nodes": 1,
        "ranks_per_node": 2,
        "cpus_per_rank": 1,
        "total_updates": 8,
        "measured_updates": 6,
        "device": "cpu",
        "memory_limit_bytes": None,
        "ranks": ranks,
        "log_path": "launcher.log",
        "log_tail": "",
    }
    return RunEvidence(**(values | changes))
