"""What the search is shown and what it answers; it knows no journal, no executor and no clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from engine.schema.base import Record, Scalar
from engine.schema.trial import Candidate, FailureKind, OutcomeKind, PatchRef, TrialKind
from engine.task.space import ParameterSpace

Positive = Annotated[float, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, le=1)]

_INVISIBLE_KINDS = frozenset({OutcomeKind.VOID, OutcomeKind.CANCELLED})
_INVISIBLE_FAILURES = frozenset({FailureKind.INFRA, FailureKind.PREEMPTED, FailureKind.USER_ERROR})


class Observation(Record):
    """One finished trial.

    log_speedup: log(baseline step time / step time), None where not measured.
    relative_variance: noise variance over that of a full trial (2 = half of the timed updates).
    memory_gib: measured peak per rank; memory_bound_gib: at least this much was needed (out of memory).
    signature, implicated: of the failure, see Attribution.
    """

    candidate: Candidate
    trial_id: str
    trial_kind: TrialKind = TrialKind.SEARCH
    kind: OutcomeKind
    truncated: bool = False
    log_speedup: float | None = None
    relative_variance: Positive = 1.0
    memory_gib: Positive | None = None
    memory_bound_gib: Positive | None = None
    failure: FailureKind | None = None
    signature: str | None = None
    implicated: tuple[str, ...] = ()
    gpu_hours: Annotated[float, Field(ge=0)] = 0.0

    @property
    def visible(self) -> bool:
        """Whether the trial says anything about its candidate; infrastructure and people do not."""
        return self.kind not in _INVISIBLE_KINDS and self.failure not in _INVISIBLE_FAILURES

    @property
    def ran(self) -> bool:
        """Whether the candidate trained and kept every invariant."""
        return self.visible and self.kind is OutcomeKind.COMPLETED

    @property
    def out_of_memory(self) -> bool:
        """Whether the training device's memory did not suffice."""
        return self.visible and self.kind is OutcomeKind.FAILED and self.failure is FailureKind.OOM_GPU


class Effect(Record):
    """A belief about one change, held before this study measured it.

    mechanism, value: the change (for a patch: its sha256, True).
    log_speedup, sd: against the baseline; log_memory, memory_sd: of the log peak memory, None = no belief.
    """

    mechanism: str
    value: Scalar
    log_speedup: float
    sd: Positive
    log_memory: float | None = None
    memory_sd: Positive | None = None
    source: Literal["advisor", "history"]


class Suggestion(Record):
    """A whole candidate to start from."""

    candidate: Candidate
    source: Literal["advisor", "history"]
    reason: str


class Budget(Record):
    """Search budget; None = that limit does not exist."""

    trials: int | None = None
    trials_left: int | None = None
    gpu_hours: Positive | None = None
    gpu_hours_left: float | None = None

    @property
    def progress(self) -> float:
        """Share of the tighter limit that is spent, from 0 to 1; 0 without limits."""
        shares = [
            1.0 - left / total
            for total, left in ((self.trials, self.trials_left), (self.gpu_hours, self.gpu_hours_left))
            if total is not None and left is not None and total > 0
        ]
        return min(1.0, max(0.0, *shares, 0.0)) if shares else 0.0


class Prediction(Record):
    """What the models expect; log_speedup with its central 90 % interval, memory None where unknown."""

    log_speedup: float
    low: float
    high: float
    p_fits: Probability
    memory_gib: float | None
    p_compatible: Probability
    cost_gpu_hours: float


class Proposal(Record):
    """One candidate to run, and why."""

    candidate: Candidate
    kind: TrialKind
    origin: str
    reason: str
    predicted: Prediction


class Exhausted(Record):
    """Nothing sensible is left to try."""

    reason: str


@dataclass(frozen=True)
class SearchInput:
    """Everything a decision depends on: equal inputs give equal proposals.

    Attributes:
        space: Searched parameters and their requirements.
        observations: Finished trials in the order in which they ended, the baseline among them.
        noise_sd: Standard deviation of the log step time between runs, from the diagnosis.
        noise_dof: Degrees of freedom behind it.
        budget: What is spent and left.
        seed: Of the study.
        effects: Beliefs about single changes.
        suggestions: Whole candidates to start from, best first.
        patches: Patches that may be switched on.
        baseline_memory_gib: Peak memory of the unchanged job, where measured.
        memory_limit_gib: Usable memory per rank, where known.
        headroom: Share of the limit that a deployable candidate leaves free.
        full_trial_gpu_hours: Expected price of a trial before the first has ended.
        wait_gpu_hours: Price of queueing for one trial.
        pending: Candidates that are running now.
        is_retesting: Whether one of them is a short run that looks for a conflict.
        members: Where not None, the only configurations that exist (a table of measured ones).
    """

    space: ParameterSpace
    observations: tuple[Observation, ...]
    noise_sd: float
    budget: Budget
    seed: int
    noise_dof: float = 3.0
    effects: tuple[Effect, ...] = ()
    suggestions: tuple[Suggestion, ...] = ()
    patches: tuple[PatchRef, ...] = ()
    baseline_memory_gib: float | None = None
    memory_limit_gib: float | None = None
    headroom: float = 0.04
    full_trial_gpu_hours: float = 1.0
    wait_gpu_hours: float = 0.0
    pending: tuple[Candidate, ...] = ()
    is_retesting: bool = False
    members: tuple[Mapping[str, Scalar], ...] | None = None

    @property
    def searched(self) -> tuple[Observation, ...]:
        """Visible search trials, in order."""
        return tuple(
            seen for seen in self.observations if seen.trial_kind is TrialKind.SEARCH and seen.visible
        )
