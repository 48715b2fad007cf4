"""Stage 3: propose, run, learn, until the budget, the target or the ideas end."""

from __future__ import annotations

import math

from engine.journal.state import StudyState
from engine.schema.study import Prediction, SearchEnded, Stage, StageEntered
from engine.schema.trial import OutcomeKind, TrialKind
from engine.search import view
from engine.search.propose import propose
from engine.stages.context import StudyContext
from engine.stages.search_input import search_input, spent_gpu_hours


def run_search(study: StudyContext) -> None:
    """Complete the search."""
    if study.state.search_ended is not None:
        return
    study.session.record(StageEntered(stage=Stage.SEARCH))
    if study.created.options.single_trial:
        study.session.record(SearchEnded(reason="a single candidate was asked for"))
        return
    while True:
        reason = budget_reached(study)
        if reason is not None:
            break
        proposal = propose(search_input(study))
        if isinstance(proposal, view.Exhausted):
            reason = proposal.reason
            break
        study.run_trial(
            proposal.kind,
            proposal.candidate,
            origin=proposal.origin,
            reason=proposal.reason,
            predicted=_as_ratios(
                proposal.predicted, has_limit=study.task.settings.allocation.memory_limit_gib is not None
            ),
        )
    study.session.record(SearchEnded(reason=reason))


def budget_reached(study: StudyContext) -> str | None:
    """Which limit of the search is reached, None while it may go on."""
    options, state = study.created.options, study.state
    if options.trials is not None and count_search_trials(state) >= options.trials:
        return f"all {options.trials} search trials are done"
    if options.gpu_hours is not None:
        share = study.task.settings.budget.verification_share
        allowed = options.gpu_hours * (1.0 - share)
        if spent_gpu_hours(state) >= allowed:
            return (
                f"{allowed:.3f} GPU-hours are spent, the rest of {options.gpu_hours:.3f} is for verification"
            )
    if options.deadline is not None and study.clock.now() >= options.deadline:
        return "the deadline has passed"
    hours = study.task.settings.budget.wall_clock_hours
    if hours is not None and state.created_at is not None:
        share = study.task.settings.budget.verification_share
        if study.clock.now() - state.created_at >= 3600.0 * hours * (1.0 - share):
            return "the wall-clock budget for searching is spent"
    return _target_reached(study)


def count_search_trials(state: StudyState) -> int:
    """Search trials that count against the budget; void and repeated ones do not."""
    return len(state.counted(TrialKind.SEARCH))


def _target_reached(study: StudyContext) -> str | None:
    target = study.task.settings.budget.target_speedup
    if target is None or study.state.diagnosis is None:
        return None
    margin = math.exp(2.0 * study.state.diagnosis.noise.between)
    for trial in study.state.of_kind(TrialKind.SEARCH):
        outcome = trial.outcome
        if outcome and outcome.kind is OutcomeKind.COMPLETED and (outcome.speedup or 0.0) > target * margin:
            return f"{trial.trial_id} is above the target of {target:.2f}× by more than the noise"
    return None


def _as_ratios(predicted: view.Prediction, *, has_limit: bool) -> Prediction:
    return Prediction(
        speedup=math.exp(predicted.log_speedup),
        speedup_low=math.exp(predicted.low),
        speedup_high=math.exp(predicted.high),
        p_fits=predicted.p_fits if has_limit else None,
        memory_gib=predicted.memory_gib,
        p_compatible=predicted.p_compatible,
        cost_gpu_hours=predicted.cost_gpu_hours,
    )
