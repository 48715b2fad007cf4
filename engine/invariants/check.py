"""All sixteen checks at once, and what follows from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from engine.invariants import (
    cadence,
    execution,
    learning_rate,
    optimizer,
    precision,
    timing,
    work,
    workload,
)
from engine.invariants.comparison import Comparison
from engine.invariants.context import InvariantContext
from engine.invariants.findings import INVARIANTS, Findings
from engine.schema.evidence import RunEvidence
from engine.schema.trial import InvariantResult, InvariantStatus

Check = Callable[[Comparison, Findings], None]

CHECKS: Final[dict[str, Check]] = {
    "clean_exit": execution.clean_exit,
    "steps_completed": execution.steps_completed,
    "allocation_identity": execution.allocation_identity,
    "scope_respected": execution.scope_respected,
    "model_identity": workload.model_identity,
    "data_identity": workload.data_identity,
    "tokens_per_update": workload.tokens_per_update,
    "work_performed": work.work_performed,
    "optimizer_identity": optimizer.optimizer_identity,
    "learning_rate_trace": learning_rate.learning_rate_trace,
    "update_cadence": cadence.update_cadence,
    "precision_floor": precision.precision_floor,
    "loss_trajectory": precision.loss_trajectory,
    "gradient_health": precision.gradient_health,
    "clock_agreement": timing.clock_agreement,
    "steady_state": timing.steady_state,
}

MANDATORY: Final = (
    "clean_exit",
    "steps_completed",
    "scope_respected",
    "model_identity",
    "tokens_per_update",
    "loss_trajectory",
    "clock_agreement",
)
"""Invariants without which a speed-up cannot be called verified."""

SELF_CHECKS: Final = (
    "clean_exit",
    "steps_completed",
    "allocation_identity",
    "work_performed",
    "gradient_health",
    "clock_agreement",
    "steady_state",
)
"""Invariants that say something about a run on its own."""


def check_invariants(
    baseline: RunEvidence, candidate: RunEvidence, context: InvariantContext
) -> tuple[InvariantResult, ...]:
    """Verdicts on one candidate run.

    Args:
        baseline: The unchanged job.
        candidate: The changed job.
        context: Constraints and bands.

    Returns:
        Sixteen results in the order of `INVARIANTS`.
    """
    comparison = Comparison(baseline, candidate, context)
    return tuple(_run(name, comparison) for name in INVARIANTS)


def self_consistency(
    evidence: RunEvidence, context: InvariantContext | None = None
) -> tuple[InvariantResult, ...]:
    """Verdicts on a run without a reference, such as the baseline itself: the names in `SELF_CHECKS`."""
    comparison = Comparison(evidence, evidence, context or InvariantContext())
    return tuple(_run(name, comparison) for name in SELF_CHECKS)


def worth_repeating(results: Sequence[InvariantResult]) -> bool:
    """Whether a run failed in nothing but what a disturbed machine can fail."""
    failed = [result for result in results if result.status is InvariantStatus.FAILED]
    return bool(failed) and all(result.statistical for result in failed)


def out_of_scope(violations: Sequence[str]) -> tuple[InvariantResult, ...]:
    """Verdicts on a candidate that was not run because its patches leave the scope."""
    results = []
    for name in INVARIANTS:
        findings = Findings(name)
        if name == "scope_respected":
            for violation in violations:
                findings.fail(violation)
        else:
            findings.unseen("the candidate was not run: it leaves its scope", essential=True)
        results.append(findings.result())
    return tuple(results)


def _run(name: str, comparison: Comparison) -> InvariantResult:
    findings = Findings(name)
    CHECKS[name](comparison, findings)
    return findings.result()


def verifiable(results: Sequence[InvariantResult]) -> tuple[bool, tuple[str, ...]]:
    """Whether these verdicts allow a speed-up to be called verified.

    Every invariant passed or is skipped with a reason, all are present, and none of `MANDATORY` is skipped.

    Returns:
        The answer, and one sentence for everything that stands against it.
    """
    by_name = {result.name: result for result in results}
    reasons = []
    for name in INVARIANTS:
        result = by_name.get(name)
        if result is None:
            reasons.append(f"{name} was not checked")
        elif result.status is InvariantStatus.FAILED:
            reasons.append(f"{name} failed: {result.reason}")
        elif result.status is InvariantStatus.SKIPPED and name in MANDATORY:
            reasons.append(f"{name} could not be checked: {result.reason}")
        elif result.status is InvariantStatus.SKIPPED and not result.reason:
            reasons.append(f"{name} was skipped without a reason")
    return not reasons, tuple(reasons)
