"""Stage 3: propose, run, learn, until the budget, the target or the ideas end."""

from __future__ import annotations

import math

from engine.journal.state import StudyState, TrialState
from engine.schema.study import Prediction, SearchEnded, Stage, StageEntered
from engine.schema.trial import OutcomeKind, TrialKind
from engine.search import view
from engine.search.propose import propose
from engine.stages.context import SEARCH_KINDS, StudyContext
from engine.stages.flight import Flight
from engine.stages.repetition import owed
from engine.stages.search_input import (
    committed_gpu_hours,
    is_known_conflict,
    search_input,
    spent_gpu_hours,
)
from engine.stages.streak import StudyPaused, crash_streak, pause_note


def run_search(study: StudyContext) -> None:
    """Complete the search.

    Raises:
        InfrastructureError: infrastructure broke a trial too often; what ran beside it was waited for.
        StudyPaused: the last trials all failed alike; likewise.
    """
    if study.state.search_ended is not None:
        return
    study.session.record(StageEntered(stage=Stage.SEARCH))
    if study.created.options.single_trial:
        study.session.record(SearchEnded(reason="a single candidate was asked for"))
        return
    flight = study.flight(parallel_slots(study))
    with flight.guard():
        flight.adopt(trial for trial in study.state.open_trials() if study.is_searching(trial))
        for trial in filter(study.is_searching, owed(study.state)):
            flight.launch(study.propose_again(trial))
        reason = _search(study, flight)
    study.session.record(SearchEnded(reason=reason))


def parallel_slots(study: StudyContext) -> int:
    """How many search trials may run at once: one where they share a machine or an allocation."""
    slurm = study.task.settings.slurm
    if study.created.options.executor == "local" or slurm.mode == "held":
        return 1
    return slurm.parallel_trials


def _search(study: StudyContext, flight: Flight) -> str:
    """Keep the slots filled; returns why nothing further was proposed, when the last trial has ended."""
    pause: str | None = None
    while True:
        reason = None
        while flight.has_room:
            pause = pause_reason(study)
            if pause is not None:
                flight.drain()
                break
            decision = _decide(study, len(flight.trials))
            if not isinstance(decision, view.Proposal):
                reason = decision
                break
            flight.launch(_propose(study, decision))
        if not flight.trials:
            break
        flight.wait()
    if flight.problem is not None:
        raise flight.problem
    if pause is not None:
        raise StudyPaused(pause)
    if reason is None:
        raise AssertionError("a search without trials in flight goes on or has a reason to end")
    return reason


def _decide(study: StudyContext, running: int) -> view.Proposal | str | None:
    """What to start now; a reason where nothing more is to be started, None where the answer must wait."""
    reason = budget_reached(study)
    if reason is not None:
        return reason
    if running and is_committed(study):
        return None
    proposal = propose(search_input(study))
    if isinstance(proposal, view.Exhausted):
        return None if running else proposal.reason
    return proposal


def _propose(study: StudyContext, proposal: view.Proposal) -> TrialState:
    return study.propose(
        proposal.kind,
        proposal.candidate,
        origin=proposal.origin,
        reason=proposal.reason,
        predicted=_as_ratios(
            proposal.predicted, has_limit=study.task.settings.allocation.memory_limit_gib is not None
        ),
    )


def pause_reason(study: StudyContext) -> str | None:
    """Why a person should look before the search goes on; None while it may."""
    row = crash_streak(study.new_trials(*SEARCH_KINDS))
    if row is None or is_known_conflict(study, row):
        return None
    return pause_note(row, study.session.folder.root)


def is_committed(study: StudyContext) -> bool:
    """Whether the trials in flight will use up what is left of the budget, should each cost the dearest."""
    options, state = study.created.options, study.state
    if options.trials is not None:
        running = sum(trial.proposed.kind is TrialKind.SEARCH for trial in state.open_trials())
        if count_search_trials(state) + running >= options.trials:
            return True
    if options.gpu_hours is None:
        return False
    allowed = options.gpu_hours * (1.0 - study.task.settings.budget.verification_share)
    return spent_gpu_hours(state) + committed_gpu_hours(state) >= allowed


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
