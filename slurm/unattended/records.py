"""What the unattended engine writes down: its order, its newest job, where it stands."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from engine.durable import write_text
from engine.schema.base import Record


class EngineOrder(Record):
    """What an engine job runs: `run` while the study does not exist, `resume` afterwards, both from `cwd`."""

    study: str
    run: tuple[str, ...]
    resume: tuple[str, ...]
    cwd: str
    partition: str | None = None
    inside: bool = False


class Submission(Record):
    """The newest job of the engine; `job_id` is None between the intention and sbatch's answer."""

    number: int
    name: str
    intended_at: float
    job_id: str | None = None


class Phase(enum.StrEnum):
    """Where an unattended engine stands.

    submitted ──► running ◄──► waiting          a pause before the engine is started again
                     │  ▲
                     │  └── handing_over        time limit: the job requeues or succeeds itself
                     ├────► left                ended from outside; trial jobs go on; Slurm may start it again
                     └────► ended
    """

    SUBMITTED = "submitted"
    RUNNING = "running"
    WAITING = "waiting"
    HANDING_OVER = "handing_over"
    LEFT = "left"
    ENDED = "ended"


class EngineState(Record):
    """Where an unattended engine stands.

    Args:
        phase: See Phase.
        words: One sentence for a person.
        job_id: The Slurm job that wrote this.
        host: The node that it ran on.
        restarts: How often Slurm started this job again.
        at: Unix time, seconds.
        exit_code: Exit code of the engine that ended last; None while none has, or when a signal killed it.
        crashes: Unix times at which the engine crashed, newest last.
    """

    phase: Phase
    words: str
    job_id: str
    host: str
    restarts: int
    at: float
    exit_code: int | None = None
    crashes: tuple[float, ...] = ()


SomeRecord = TypeVar("SomeRecord", bound=Record)


def write_record(path: Path, record: Record) -> None:
    """Write a record durably.

    Raises:
        DiskFullError, InfrastructureError: the disk refuses.
    """
    write_text(path, record.model_dump_json(indent=1) + "\n")


def read_record(path: Path, kind: type[SomeRecord]) -> SomeRecord | None:
    """Read a record, None where there is none or it is no such record."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
