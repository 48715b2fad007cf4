"""Independent, interleaved re-runs of the baseline and the finalists, planned before the first is run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from engine.invariants.check import verifiable
from engine.journal.state import TrialState
from engine.models.noise import NoiseEstimate
from engine.models.paired import PairedEstimate, Verdict, compare, verify
from engine.schema.study import FinalistVerdict, VerificationDone, VerificationPlanned
from engine.schema.trial import Candidate, InvariantResult, InvariantStatus, OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.trial.measure import effective_step_time

PAIRS = 6


def plan_verification(study: StudyContext, finalists: Sequence[Candidate]) -> None:
    """Fix the finalists and the number of pairs before the first pair is run."""
    diagnosis = study.state.diagnosis
    if diagnosis is None:
        raise AssertionError("verification follows the diagnosis")
    study.session.record(
        VerificationPlanned(
            finalists=tuple(finalists),
            pairs=PAIRS if finalists else 0,
            threshold=1.0 + max(0.01, diagnosis.noise.smallest_effect),
        )
    )


def complete_verification(study: StudyContext) -> None:
    """Run what the latest plan still lacks, then judge; everything that the journal already holds is kept."""
    plan = study.state.plan
    if plan is None:
        raise AssertionError("a verification is planned before it is run")
    for pair in range(plan.pairs):
        _run_block(study, plan, pair)
    study.session.record(VerificationDone(verdicts=judge(study, plan)))


def _run_block(study: StudyContext, plan: VerificationPlanned, pair: int) -> None:
    """Baseline and finalists once each; every other block in reverse, so that drift cancels."""
    candidates = [study.baseline_candidate(), *plan.finalists]
    roles = list(range(len(candidates)))
    for role in reversed(roles) if pair % 2 else roles:
        if _trial_of(study, pair, role) is None:
            study.run_trial(
                TrialKind.VERIFICATION,
                candidates[role],
                origin=_origin(study.state.plan_number, role),
                reason="independent re-run",
                pair=pair,
            )


def _origin(plan_number: int, role: int) -> str:
    name = "baseline" if role == 0 else f"finalist-{role}"
    return f"verification-{plan_number}:{name}"


def _trial_of(study: StudyContext, pair: int, role: int) -> TrialState | None:
    origin = _origin(study.state.plan_number, role)
    for trial in study.state.counted(TrialKind.VERIFICATION):
        is_cancelled = trial.outcome is None or trial.outcome.kind is OutcomeKind.CANCELLED
        if trial.proposed.pair == pair and trial.proposed.origin == origin and not is_cancelled:
            return trial
    return None


def judge(study: StudyContext, plan: VerificationPlanned) -> tuple[FinalistVerdict, ...]:
    """Verdicts of all finalists, in the plan's order; a pure function of the journal."""
    diagnosis = study.state.diagnosis
    if diagnosis is None:
        raise AssertionError("verification follows the diagnosis")
    noise = NoiseEstimate(diagnosis.noise.between, float(diagnosis.noise.dof))
    pairs = {role: _pairs(study, plan, role) for role in range(1, len(plan.finalists) + 1)}
    estimates = {role: compare([ratio for ratio, _, _ in rows], noise) for role, rows in pairs.items()}
    measured = {role: estimate for role, estimate in estimates.items() if estimate is not None}
    verdicts = verify(list(measured.values()), tellable=math.log(plan.threshold)) if measured else ()
    by_role = dict(zip(measured, verdicts, strict=True))
    return tuple(
        _finalist_verdict(study, plan, role, candidate, measured.get(role), by_role.get(role), pairs[role])
        for role, candidate in enumerate(plan.finalists, 1)
    )


_Pair = tuple[float, float, TrialState]
"""log ratio of effective step times, ratio of CPU seconds, the finalist's trial."""


def _pairs(study: StudyContext, plan: VerificationPlanned, role: int) -> list[_Pair]:
    horizon = study.task.settings.measurement.horizon_updates
    rows: list[_Pair] = []
    for pair in range(plan.pairs):
        before, after = _trial_of(study, pair, 0), _trial_of(study, pair, role)
        if not (before and after and before.outcome and after.outcome):
            continue
        base, candidate = before.outcome.measurement, after.outcome.measurement
        usable = before.outcome.kind is OutcomeKind.COMPLETED and after.outcome.kind is OutcomeKind.COMPLETED
        if usable and base is not None and candidate is not None:
            ratio = effective_step_time(base, horizon) / effective_step_time(candidate, horizon)
            cpu = base.cpu_s_per_update / candidate.cpu_s_per_update
            rows.append((math.log(ratio), cpu, after))
    return rows


def _finalist_verdict(
    study: StudyContext,
    plan: VerificationPlanned,
    role: int,
    candidate: Candidate,
    estimate: PairedEstimate | None,
    verdict: Verdict | None,
    pairs: list[_Pair],
) -> FinalistVerdict:
    reasons = _objections(study, plan, role)
    if len(pairs) < plan.pairs:
        reasons.append(f"only {len(pairs)} of {plan.pairs} planned pairs could be measured")
    if verdict is not None and not verdict.verified:
        reasons.append(
            f"the lower end of the 99 % interval, {math.exp(verdict.lower):.3f}×, "
            f"is not above {plan.threshold:.3f}×"
        )
    return FinalistVerdict(
        candidate=candidate,
        speedup=math.exp(estimate.mean) if estimate else None,
        speedup_ci=(math.exp(verdict.lower), math.exp(verdict.upper)) if verdict else None,
        pairs=len(pairs),
        verified=verdict is not None and verdict.verified and not reasons,
        reasons=tuple(reasons),
        invariants=_combined(study, plan, role),
        cpu_speedup=statistics.median(cpu for _, cpu, _ in pairs) if pairs else None,
    )


def _objections(study: StudyContext, plan: VerificationPlanned, role: int) -> list[str]:
    """Everything but the number that speaks against a finalist."""
    constraints = study.task.settings.constraints
    limit = study.task.settings.allocation.memory_limit_gib
    objections: list[str] = []
    for pair in range(plan.pairs):
        trial = _trial_of(study, pair, role)
        if trial is None or trial.outcome is None:
            continue
        outcome = trial.outcome
        if outcome.kind is OutcomeKind.FAILED:
            cause = outcome.attribution.cause if outcome.attribution else "no cause known"
            objections.append(f"{trial.trial_id} failed: {cause}")
            continue
        is_verifiable, why_not = verifiable(outcome.invariants)
        if not is_verifiable:
            objections.extend(f"{trial.trial_id}: {reason}" for reason in why_not)
        peak = outcome.measurement.peak_memory_gib if outcome.measurement else None
        if limit is not None and peak is not None and peak > limit * (1.0 - constraints.memory_headroom):
            objections.append(
                f"{trial.trial_id}: {peak:.3f} GiB leave less than "
                f"{100 * constraints.memory_headroom:.0f} % of {limit:.3f} GiB free"
            )
    return objections


def _combined(study: StudyContext, plan: VerificationPlanned, role: int) -> tuple[InvariantResult, ...]:
    """The worst verdict of each invariant over the finalist's runs."""
    rank = {InvariantStatus.FAILED: 2, InvariantStatus.SKIPPED: 1, InvariantStatus.PASSED: 0}
    worst: dict[str, InvariantResult] = {}
    for pair in range(plan.pairs):
        trial = _trial_of(study, pair, role)
        for result in trial.outcome.invariants if trial and trial.outcome else ():
            if result.name not in worst or rank[result.status] > rank[worst[result.name].status]:
                worst[result.name] = result
    return tuple(worst.values())
