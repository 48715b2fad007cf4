"""Independent, interleaved re-runs of the baseline and the finalists, planned before the first is run."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from engine.diagnosis.nodes import excluded_nodes
from engine.invariants.check import verifiable
from engine.journal.state import TrialState
from engine.models.noise import NoiseEstimate
from engine.models.paired import Verdict, compare, verify
from engine.schema.study import FinalistVerdict, VerificationDone, VerificationPlanned
from engine.schema.trial import (
    Candidate,
    InvariantResult,
    InvariantStatus,
    Measurement,
    OutcomeKind,
    TrialKind,
)
from engine.stages.context import StudyContext
from engine.trial.measure import log_ratio

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
    study.give_back()  # what follows is writing and deploying
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
                nodelist=_same_nodes(study),
            )


def _same_nodes(study: StudyContext) -> tuple[str, ...]:
    """The nodes that the pairs run on: those of the last run that this plan measured, so that pairs compare.

    A held allocation and a single machine have no others to offer. Where a node broke, its trial is repeated
    on any, and the rest follows there.
    """
    if study.created.options.executor == "local" or study.task.settings.slurm.mode == "held":
        return ()
    mark = f"verification-{study.state.plan_number}:"
    trials = [
        trial
        for trial in study.state.counted(TrialKind.VERIFICATION)
        if trial.proposed.origin.startswith(mark) and _measured(trial) is not None
    ]
    last = max(trials, key=lambda trial: trial.finished_at or 0.0, default=None)
    nodes = last.outcome.nodes if last is not None and last.outcome else ()
    return () if set(nodes) & set(excluded_nodes(study.state)) else nodes


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
    roles = range(1, len(plan.finalists) + 1)
    pairs = {role: _pairs(study, plan, role) for role in roles}
    inside = _verdicts(study, plan, {role: [each.inside for each in rows] for role, rows in pairs.items()})
    outside = _verdicts(
        study,
        plan,
        {role: [each.outside for each in rows if each.outside is not None] for role, rows in pairs.items()},
    )
    return tuple(
        _finalist_verdict(study, plan, role, pairs[role], inside.get(role), outside.get(role))
        for role in roles
    )


@dataclass(frozen=True)
class _Pair:
    """One pair: log ratios of step times by the probe's and by the agent's clock, ratio of CPU seconds."""

    inside: float
    outside: float | None
    cpu: float | None


def _pairs(study: StudyContext, plan: VerificationPlanned, role: int) -> list[_Pair]:
    horizon = study.task.settings.measurement.horizon_updates
    rows = []
    for pair in range(plan.pairs):
        before, after = _measured(_trial_of(study, pair, 0)), _measured(_trial_of(study, pair, role))
        if before is None or after is None:
            continue
        outside = cpu = None
        if before.outside_step_time_s and after.outside_step_time_s:
            outside = math.log(before.outside_step_time_s / after.outside_step_time_s)
        if before.cpu_s_per_update > 0.0 and after.cpu_s_per_update > 0.0:
            cpu = before.cpu_s_per_update / after.cpu_s_per_update
        rows.append(_Pair(log_ratio(before, after, horizon), outside, cpu))
    return rows


def _measured(trial: TrialState | None) -> Measurement | None:
    outcome = trial.outcome if trial is not None else None
    return outcome.measurement if outcome is not None and outcome.kind is OutcomeKind.COMPLETED else None


def _verdicts(
    study: StudyContext, plan: VerificationPlanned, ratios: dict[int, list[float]]
) -> dict[int, Verdict]:
    """The statistical verdict of each finalist that has at least two pairs."""
    diagnosis = study.state.diagnosis
    if diagnosis is None:
        raise AssertionError("verification follows the diagnosis")
    noise = NoiseEstimate(diagnosis.noise.between, float(diagnosis.noise.dof))
    estimates = {role: compare(values, noise) for role, values in ratios.items()}
    measured = {role: estimate for role, estimate in estimates.items() if estimate is not None}
    if not measured:
        return {}
    verdicts = verify(list(measured.values()), tellable=math.log(plan.threshold))
    return dict(zip(measured, verdicts, strict=True))


def _finalist_verdict(
    study: StudyContext,
    plan: VerificationPlanned,
    role: int,
    pairs: list[_Pair],
    inside: Verdict | None,
    outside: Verdict | None,
) -> FinalistVerdict:
    reasons = _objections(study, plan, role)
    if len(pairs) < plan.pairs:
        reasons.append(f"only {len(pairs)} of {plan.pairs} planned pairs could be measured")
    if inside is not None and not inside.verified:
        reasons.append(_not_proven(inside, plan, "the interval"))
    if any(each.outside is None for each in pairs):
        reasons.append("the node agent's clock did not see every run")
    elif outside is not None and not outside.verified and (inside is None or inside.verified):
        reasons.append(_not_proven(outside, plan, "the interval on the node agent's clock"))
    cpu = [each.cpu for each in pairs if each.cpu is not None]
    return FinalistVerdict(
        candidate=plan.finalists[role - 1],
        speedup=math.exp(inside.estimate.mean) if inside else None,
        speedup_ci=_as_ratios(inside),
        outside_ci=_as_ratios(outside),
        pairs=len(pairs),
        verified=inside is not None and not reasons,
        reasons=tuple(reasons),
        invariants=_combined(study, plan, role),
        cpu_speedup=statistics.median(cpu) if cpu else None,
    )


def _as_ratios(verdict: Verdict | None) -> tuple[float, float] | None:
    return None if verdict is None else (math.exp(verdict.lower), math.exp(verdict.upper))


def _not_proven(verdict: Verdict, plan: VerificationPlanned, what: str) -> str:
    low = math.exp(verdict.lower)
    if verdict.lower > verdict.margin:
        return (
            f"{what} begins above {plan.threshold:.3f}×, but not after Holm's correction for "
            f"{len(plan.finalists)} finalists"
        )
    return f"{what} (99 %) begins at {low:.3f}×, which is not above {plan.threshold:.3f}×"


def _objections(study: StudyContext, plan: VerificationPlanned, role: int) -> list[str]:
    """Everything but the numbers of the pairs that speaks against a finalist."""
    objections: list[str] = []
    for pair in range(plan.pairs):
        trial = _trial_of(study, pair, role)
        if trial is None or trial.outcome is None:
            continue
        if trial.outcome.kind is OutcomeKind.FAILED:
            attribution = trial.outcome.attribution
            cause = attribution.cause if attribution else "no cause known"
            objections.append(f"{trial.trial_id} failed: {cause}")
            continue
        is_verifiable, why_not = verifiable(trial.outcome.invariants)
        if not is_verifiable:
            objections.extend(f"{trial.trial_id}: {reason}" for reason in why_not)
        shortage = _memory_shortage(study, trial.outcome.measurement)
        if shortage is not None:
            objections.append(f"{trial.trial_id}: {shortage}")
    return objections


def _memory_shortage(study: StudyContext, measured: Measurement | None) -> str | None:
    """Why the memory headroom is not kept; None where it is, or where no limit is set."""
    limit = study.task.settings.allocation.memory_limit_gib
    headroom = study.task.settings.constraints.memory_headroom
    if limit is None:
        return None
    peak = measured.peak_memory_gib if measured is not None else None
    if peak is None:
        return f"peak memory was not seen, so the headroom of {headroom:.0%} is not shown"
    if peak > limit * (1.0 - headroom):
        return f"{peak:.3f} GiB leave less than {headroom:.0%} of {limit:.3f} GiB free"
    return None


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
