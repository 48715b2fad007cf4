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


class Loss(enum.StrEnum):
    """Why a job is gone without a result.

    node_failed         the scheduler or the head agent missed a node
    preempted           taken away for another job
    host_oom            killed for host memory by the scheduler or the kernel
    time_limit          the scheduler's time limit, before the agent could write a result
    cancelled_outside   somebody cancelled it, not this study
    restarted           requeued: the run in the folder is not one clean measurement
    never_started       the job or its agent could not start
    agent_died          the agent is gone, the scheduler knows no better reason
    vanished            neither the scheduler nor the files know it any more
    """

    NODE_FAILED = "node_failed"
    PREEMPTED = "preempted"
    HOST_OOM = "host_oom"
    TIME_LIMIT = "time_limit"
    CANCELLED_OUTSIDE = "cancelled_outside"
    RESTARTED = "restarted"
    NEVER_STARTED = "never_started"
    AGENT_DIED = "agent_died"
    VANISHED = "vanished"


class JobRequest(Record):
    """One trial to run: the launch plan lies at `spec_path`.

    `exclude` names nodes that must not be used; `nodelist` names those that it must run on, empty = any.
    """

    trial_id: str
    trial_dir: str
    spec_path: str
    token: str
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    time_limit_s: float
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()


class JobHandle(Record):
    """Enough to find the job again from another process."""

    executor: Literal["local", "slurm", "simulated"]
    job_id: str
    trial_dir: str
    token: str


class SchedulerFacts(Record):
    """What a scheduler said about a job when it was last asked; times are unix seconds, None = not said.

    `state` is the scheduler's own word; `source` is the command that said it.
    """

    job_id: str
    state: str
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    nodes: tuple[str, ...] = ()
    restarts: int = 0
    name: str | None = None
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    time_limit_s: float | None = None
    source: Literal["squeue", "scontrol", "sacct"]
    as_of: float


class JobStatus(Record):
    """A reading of a job's state; `as_of` is unix time in seconds, `loss` is set where the state is lost."""

    state: JobState
    reason: str | None = None
    as_of: float
    loss: Loss | None = None
    scheduler: SchedulerFacts | None = None


class AllocationUse(Record):
    """What one allocation of a scheduler has cost so far; times are unix seconds.

    `gpus` counts ranks where the training device is a CPU. `source` says whose clock it is.
    """

    job_id: str
    gpus: int
    nodes: tuple[str, ...] = ()
    submitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    source: Literal["own clock", "squeue", "scontrol", "sacct"]
