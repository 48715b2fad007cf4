"""What the engine asks of an executor, and what it hears back."""

from __future__ import annotations

import enum
from typing import Literal

from engine.schema.base import Record


class JobState(enum.StrEnum):
    """State of a submitted job.

    pending ──► running ──► finished      result.json exists and nothing of the trial runs any more
       │           │
       ├───────────┴──────► cancelled     we asked for it
       └──────────────────► lost          gone without a result: infrastructure, never the candidate
    """

    PENDING = "pending"
    RUNNING = "running"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def is_terminal(self) -> bool:
        """Whether the job will not change any more."""
        return self in (JobState.FINISHED, JobState.CANCELLED, JobState.LOST)


class JobRequest(Record):
    """One trial to run: the launch plan lies at `spec_path`."""

    trial_id: str
    trial_dir: str
    spec_path: str
    token: str
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    time_limit_s: float


class JobHandle(Record):
    """Enough to find the job again from another process."""

    executor: Literal["local", "slurm", "simulated"]
    job_id: str
    trial_dir: str
    token: str


class JobStatus(Record):
    """A reading of a job's state; `as_of` is unix time in seconds."""

    state: JobState
    reason: str | None = None
    as_of: float
