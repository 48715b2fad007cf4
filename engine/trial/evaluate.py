"""From the evidence of a run to its outcome: attribution first, then measurement, then the invariants."""

from __future__ import annotations

from dataclasses import dataclass

from engine.invariants.check import check_invariants, out_of_scope, self_consistency
from engine.invariants.context import InvariantContext
from engine.schema.evidence import RunEvidence
from engine.schema.job import SchedulerFacts
from engine.schema.trial import (
    Attribution,
    EvidenceLine,
    FailureKind,
    InvariantStatus,
    Measurement,
    Outcome,
    OutcomeKind,
)
from engine.trial.attribution.attribute import attribute
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.other_gpus import attribute_other_gpus
from engine.trial.attribution.scheduler_words import remarkable_line
from engine.trial.measure import Unmeasured, effective_step_time, measure
from engine.trial.plan import RefusedTrial
from engine.units import gpu_hours

_VOID_KINDS = (FailureKind.INFRA, FailureKind.PREEMPTED)


@dataclass(frozen=True)
class Reference:
    """The unchanged job that a candidate is compared with.

    step_time_s is the geometric mean of the effective step times of the baseline runs, seconds.
    """

    evidence: RunEvidence
    step_time_s: float


def evaluate(
    evidence: RunEvidence,
    *,
    wall_s: float,
    horizon_updates: int,
    reference: Reference | None,
    attribution: AttributionContext,
    invariants: InvariantContext,
) -> Outcome:
    """Judge one run; a pure function of what was recorded.

    Args:
        evidence: What the run left behind.
        wall_s: Seconds for which the allocation was held.
        horizon_updates: Updates over which start-up is charged.
        reference: The baseline; None for the baseline itself.
        attribution: What was changed, for the blame.
        invariants: Constraints and bands.
    """
    hours = gpu_hours(wall_s, evidence.world_size)
    why = attribute(evidence, attribution)
    if why is not None:
        why = why.model_copy(update={"evidence": (*why.evidence, *_unquoted(why, attribution.scheduler))})
        return Outcome(kind=outcome_kind(why), attribution=why, wall_s=wall_s, gpu_hours=hours)
    measured = measure(evidence)
    if isinstance(measured, Unmeasured):
        unknown = Attribution(kind=FailureKind.UNKNOWN, blame_candidate=None, cause=measured.reason)
        return Outcome(kind=OutcomeKind.FAILED, attribution=unknown, wall_s=wall_s, gpu_hours=hours)
    if reference is None:
        results = self_consistency(evidence, invariants)
    else:
        foreign = attribute_other_gpus(reference.evidence, evidence)
        if foreign is not None:
            return Outcome(kind=OutcomeKind.VOID, attribution=foreign, wall_s=wall_s, gpu_hours=hours)
        results = check_invariants(reference.evidence, evidence, invariants)
    failed = any(result.status is InvariantStatus.FAILED for result in results)
    return Outcome(
        kind=OutcomeKind.REJECTED if failed else OutcomeKind.COMPLETED,
        measurement=measured,
        speedup=None if reference is None else speedup(reference, measured, horizon_updates),
        invariants=results,
        warnings=tuple(evidence.notes),
        wall_s=wall_s,
        gpu_hours=hours,
    )


def _unquoted(why: Attribution, facts: SchedulerFacts | None) -> tuple[EvidenceLine, ...]:
    """The scheduler's words, where they say something and the attribution does not quote them yet."""
    return tuple(line for line in remarkable_line(facts) if line not in why.evidence)


def refused_outcome(refused: RefusedTrial) -> Outcome:
    """The outcome of a candidate that was not run."""
    if refused.attribution is not None:
        kind = outcome_kind(refused.attribution)
        return Outcome(kind=kind, attribution=refused.attribution, wall_s=0.0, gpu_hours=0.0)
    return Outcome(
        kind=OutcomeKind.REJECTED,
        invariants=out_of_scope(refused.violations),
        wall_s=0.0,
        gpu_hours=0.0,
    )


def speedup(reference: Reference, measured: Measurement, horizon_updates: int) -> float:
    """Baseline's effective step time over the candidate's."""
    return reference.step_time_s / effective_step_time(measured, horizon_updates)


def outcome_kind(why: Attribution) -> OutcomeKind:
    """What becomes of a trial that failed for this reason."""
    if why.kind in _VOID_KINDS:
        return OutcomeKind.VOID
    return OutcomeKind.CANCELLED if why.kind is FailureKind.NONE else OutcomeKind.FAILED
