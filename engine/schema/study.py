"""A study as its journal tells it: stages, events, verification."""

from __future__ import annotations

import enum
from typing import Annotated, Literal

from pydantic import Field

from engine.schema.base import Record
from engine.schema.diagnosis import Diagnosis
from engine.schema.job import AllocationUse, JobHandle
from engine.schema.trial import Candidate, InvariantResult, Outcome, TrialKind


class Stage(enum.StrEnum):
    """Where a study stands.

        initialization ──► diagnosis ──► search ──► reporting ──► deployment ──► done
              │                │            │            │             │
              └────────────────┴────────────┴────────────┴─────────────┴──► failed, stopped

    A stage is entered by a StageEntered event. Every stage skips what its events already hold, so entering it
    again after a crash repeats nothing. `failed` (an error) and `stopped` (a person) remember the stage
    they interrupted; `resume` goes on from there.
    """

    INITIALIZATION = "initialization"
    DIAGNOSIS = "diagnosis"
    SEARCH = "search"
    REPORTING = "reporting"
    DEPLOYMENT = "deployment"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


class Prediction(Record):
    """What the models expected when a trial was proposed."""

    speedup: float
    speedup_low: float
    speedup_high: float
    p_fits: float | None
    memory_gib: float | None
    p_compatible: float
    cost_gpu_hours: float


class StudyOptions(Record):
    """What the command line fixed for the whole study."""

    executor: Literal["local", "slurm", "simulated"] = "local"
    seed: int
    trials: int | None
    gpu_hours: float | None
    deadline: float | None = None
    advisor: Literal["rules", "claude", "none"]
    patches: Literal["off", "ask", "auto"]
    deploy_to: str | None = None
    single_trial: bool = False
    on_event: str | None = None


class StudyCreated(Record):
    """The first event: what is optimised."""

    event: Literal["study_created"] = "study_created"
    task_name: str
    task_sha256: str
    snapshot_sha256: str
    project: str
    nonce: str
    options: StudyOptions
    product_version: str


class EpochStarted(Record):
    """A writer took over."""

    event: Literal["epoch_started"] = "epoch_started"
    epoch: int
    host: str
    pid: int


class StageEntered(Record):
    """The study moved on, or stopped; `exit_code` is the engine's where the stage is failed or stopped."""

    event: Literal["stage_entered"] = "stage_entered"
    stage: Stage
    note: str | None = None
    exit_code: int | None = None


class TrialProposed(Record):
    """A trial was decided; nothing runs yet.

    `pair` is the block of a verification trial; `nodelist` names the nodes that it must run on.
    """

    event: Literal["trial_proposed"] = "trial_proposed"
    trial_id: str
    kind: TrialKind
    origin: str
    reason: str
    candidate: Candidate
    predicted: Prediction | None = None
    pair: int | None = None
    retry_of: str | None = None
    nodelist: tuple[str, ...] = ()
    total_updates: int
    measured_updates: int


class TrialSubmitted(Record):
    """A trial was handed to the executor."""

    event: Literal["trial_submitted"] = "trial_submitted"
    trial_id: str
    handle: JobHandle


class TrialFinished(Record):
    """A trial is over; the outcome holds everything."""

    event: Literal["trial_finished"] = "trial_finished"
    trial_id: str
    outcome: Outcome


class AllocationUsed(Record):
    """What an allocation that is held across trials has cost so far; the last one of a job counts."""

    event: Literal["allocation_used"] = "allocation_used"
    use: AllocationUse


class Diagnosed(Record):
    """The diagnosis stage is complete."""

    event: Literal["diagnosed"] = "diagnosed"
    diagnosis: Diagnosis


class SearchEnded(Record):
    """Why no further trial was proposed."""

    event: Literal["search_ended"] = "search_ended"
    reason: str


class VerificationPlanned(Record):
    """Finalists and the number of pairs, fixed before the first pair is run."""

    event: Literal["verification_planned"] = "verification_planned"
    finalists: tuple[Candidate, ...]
    pairs: int
    threshold: float


class FinalistVerdict(Record):
    """The paired re-measurement of one finalist.

    speedup_ci is the 99 % Student-t interval of the paired log ratio, as ratios. outside_ci is the same from
    the node agent's clock. `verified` also takes Holm's correction over the finalists, the invariants and the
    memory headroom into account; `reasons` say what stands against it.
    """

    candidate: Candidate
    speedup: float | None
    speedup_ci: tuple[float, float] | None
    pairs: int
    verified: bool
    reasons: tuple[str, ...]
    invariants: tuple[InvariantResult, ...]
    outside_ci: tuple[float, float] | None = None
    cpu_speedup: float | None = None


class VerificationDone(Record):
    """The verdicts, in the order of the plan."""

    event: Literal["verification_done"] = "verification_done"
    verdicts: tuple[FinalistVerdict, ...]


class Deployed(Record):
    """The winner was applied to a project."""

    event: Literal["deployed"] = "deployed"
    target: str
    branch: str
    commits: tuple[str, ...]


Event = Annotated[
    StudyCreated
    | EpochStarted
    | StageEntered
    | TrialProposed
    | TrialSubmitted
    | TrialFinished
    | AllocationUsed
    | Diagnosed
    | SearchEnded
    | VerificationPlanned
    | VerificationDone
    | Deployed,
    Field(discriminator="event"),
]


class Entry(Record):
    """One line of the journal; `n` counts within the segment, `at` is unix time in seconds."""

    v: Literal[1] = 1
    epoch: int
    n: int
    at: float
    data: Event
