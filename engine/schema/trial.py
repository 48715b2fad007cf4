"""One trial: candidate, measurement, verdicts, outcome."""

from __future__ import annotations

import enum
from typing import Literal

from engine.schema.base import Record, Scalar
from engine.schema.job import Loss, SchedulerFacts


class TrialKind(enum.StrEnum):
    """Why a trial is run; only `search` counts against `--trials`."""

    BASELINE = "baseline"
    PERTURBATION = "perturbation"
    SEARCH = "search"
    RETEST = "retest"
    VERIFICATION = "verification"
    MANUAL = "manual"


class OutcomeKind(enum.StrEnum):
    """How a trial ended.

    completed   measured, and every invariant passed or was skipped with a reason
    rejected    measured, but an invariant failed: the number counts for nothing
    failed      the candidate could not be trained (out of memory, conflict, crash, hang …)
    void        infrastructure: says nothing about the candidate, shown to no model, may be retried
    cancelled   stopped by a person or by a budget
    """

    COMPLETED = "completed"
    REJECTED = "rejected"
    FAILED = "failed"
    VOID = "void"
    CANCELLED = "cancelled"


class FailureKind(enum.StrEnum):
    """Kinds of attribution."""

    OOM_GPU = "oom_gpu"
    OOM_HOST = "oom_host"
    OOM_SHM = "oom_shm"
    OOM_KERNEL_RESOURCE = "oom_kernel_resource"
    CONFIG_CONFLICT = "config_conflict"
    PATCH_ERROR = "patch_error"
    NUMERICS = "numerics"
    HANG = "hang"
    SLOW = "slow"
    INFRA = "infra"
    TIMEOUT = "timeout"
    PREEMPTED = "preempted"
    USER_ERROR = "user_error"
    NONE = "none"
    UNKNOWN = "unknown"


class PatchRef(Record):
    """A unified diff of the study, addressed by content."""

    name: str
    sha256: str


class Candidate(Record):
    """A full configuration (mechanism → canonical value, searched parameters only) + patches."""

    configuration: dict[str, Scalar]
    patches: tuple[PatchRef, ...] = ()

    def key(self) -> str:
        """A canonical identity: equal candidates have equal keys."""
        items = sorted(f"{name}={value!r}" for name, value in self.configuration.items())
        return "|".join([*items, *sorted(patch.sha256 for patch in self.patches)])


class EvidenceLine(Record):
    """A line that proves a cause; `line` is 1-based, None where the evidence is no log."""

    line: int | None
    text: str


class Attribution(Record):
    """Why a trial failed. Sizes in GiB or bytes, None where the text has none."""

    kind: FailureKind
    blame_candidate: bool | None
    cause: str
    rank: int | None = None
    evidence: tuple[EvidenceLine, ...] = ()
    implicated: tuple[str, ...] = ()
    signature: str | None = None
    tried_gib: float | None = None
    free_gib: float | None = None
    capacity_gib: float | None = None
    allocated_gib: float | None = None
    reserved_gib: float | None = None
    memory_gap_gib: float | None = None
    required_bytes: int | None = None
    limit_bytes: int | None = None


class InvariantStatus(enum.StrEnum):
    """Verdict of one validator; `skipped` always carries a reason."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class InvariantResult(Record):
    """One of the sixteen verdicts; a `statistical` failure may be the machine's, and has to come again."""

    layer: Literal["execution", "workload", "update scheduling", "numerical precision", "timing consistency"]
    name: str
    status: InvariantStatus
    expected: str | None = None
    observed: str | None = None
    reason: str
    evidence: tuple[str, ...] = ()
    statistical: bool = False


class Phases(Record):
    """Seconds per update; None = not visible. Communication is the exposed part and a subset of backward."""

    forward: float | None
    backward: float | None
    optimizer: float | None
    communication: float | None
    data: float | None


class Measurement(Record):
    """Numbers of one run over the measured window.

    step_time_s is the mean over updates of the slowest rank's wall time; step_times_s are those
    of the window, in order; outside_step_time_s is the mean over the window on the node agent's clock.
    """

    step_time_s: float
    step_times_s: tuple[float, ...]
    cpu_s_per_update: float
    tokens_per_update: int | None
    tokens_per_s: float | None
    peak_memory_gib: float | None
    memory_metric: str | None
    outside_step_time_s: float | None = None
    phases: Phases
    losses: tuple[float, ...]
    start_s: float | None
    warmup_updates: int
    probe_share: float


class Outcome(Record):
    """Everything a finished trial says, in one line of the journal.

    nodes: names of the nodes it ran on, by node rank; empty = not known.
    suspect_nodes: those among them that may be the cause where infrastructure broke the trial.
    allocation: the scheduler's job it ran in, which may hold other trials too; None without a scheduler.
    scheduler: what the scheduler last said of that job; loss: why a job left no result.
    queue_wait_s: from the submission to the start, seconds; None where either is not known.
    """

    kind: OutcomeKind
    truncated: bool = False
    measurement: Measurement | None = None
    speedup: float | None = None
    attribution: Attribution | None = None
    invariants: tuple[InvariantResult, ...] = ()
    warnings: tuple[str, ...] = ()
    wall_s: float
    gpu_hours: float
    nodes: tuple[str, ...] = ()
    suspect_nodes: tuple[str, ...] = ()
    allocation: str | None = None
    scheduler: SchedulerFacts | None = None
    loss: Loss | None = None
    queue_wait_s: float | None = None
