"""The journal as the search sees it: a pure function of the study's state."""

from __future__ import annotations

import math

from engine.advisor.rules import advise
from engine.journal.state import StudyState, TrialState
from engine.mechanisms.table import load_mechanisms
from engine.schema.advice import Idea
from engine.schema.trial import Candidate, FailureKind, OutcomeKind, TrialKind
from engine.search.view import Budget, Effect, Observation, SearchInput, Suggestion
from engine.stages.context import StudyContext
from engine.trial.attribution.bound import censored_bound_gib

_FEWEST_DOUBT = 0.01
"""No advisor is believed to be surer than this, in log units."""
_SHOWN = (TrialKind.BASELINE, TrialKind.SEARCH, TrialKind.RETEST)


def search_input(study: StudyContext) -> SearchInput:
    """What the next decision depends on."""
    state, settings = study.state, study.task.settings
    diagnosis = state.diagnosis
    if diagnosis is None:
        raise AssertionError("the search follows the diagnosis")
    ideas: list[Idea] = []
    if study.created.options.advisor == "rules":
        ideas = advise(diagnosis, study.task.space, load_mechanisms(), settings)
    return SearchInput(
        space=study.task.space,
        observations=tuple(observations(state, settings.allocation.device)),
        noise_sd=diagnosis.noise.between,
        noise_dof=float(diagnosis.noise.dof),
        budget=_budget(study),
        seed=study.created.options.seed,
        effects=tuple(_effect(idea) for idea in ideas if len(idea.changes) == 1),
        suggestions=tuple(_suggestion(study, idea) for idea in ideas if len(idea.changes) > 1),
        baseline_memory_gib=diagnosis.peak_memory_gib,
        memory_limit_gib=settings.allocation.memory_limit_gib,
        headroom=settings.constraints.memory_headroom,
        full_trial_gpu_hours=_baseline_cost(state),
    )


def observations(state: StudyState, device: str) -> list[Observation]:
    """Finished trials that may teach a model, in the order in which they ended."""
    finished = [trial for trial in state.counted(*_SHOWN) if trial.revoked is None]
    finished.sort(key=lambda trial: (trial.finished_at or 0.0, trial.trial_id))
    return [_observation(trial, device) for trial in finished]


def spent_gpu_hours(state: StudyState) -> float:
    """GPU-hours of all trials so far, failures included."""
    return sum(trial.outcome.gpu_hours for trial in state.trials.values() if trial.outcome)


def _observation(trial: TrialState, device: str) -> Observation:
    outcome = trial.outcome
    if outcome is None:
        raise AssertionError("only finished trials are observed")
    measured, attribution = outcome.measurement, outcome.attribution
    is_baseline = trial.proposed.kind is TrialKind.BASELINE
    completed = outcome.kind is OutcomeKind.COMPLETED
    speedup = 1.0 if is_baseline and outcome.speedup is None else outcome.speedup
    bound = censored_bound_gib(attribution) if attribution else None
    failure = attribution.kind if attribution else None
    if device == "cpu" and bound is not None:
        failure = FailureKind.OOM_GPU  # the training device's memory is the host's
    return Observation(
        candidate=trial.proposed.candidate,
        trial_id=trial.trial_id,
        trial_kind=trial.proposed.kind,
        kind=outcome.kind,
        truncated=outcome.truncated,
        log_speedup=math.log(speedup) if completed and speedup else None,
        memory_gib=measured.peak_memory_gib if measured else None,
        memory_bound_gib=bound,
        failure=failure,
        signature=attribution.signature if attribution else None,
        implicated=attribution.implicated if attribution else (),
        gpu_hours=outcome.gpu_hours,
    )


def _effect(idea: Idea) -> Effect:
    ((mechanism, value),) = idea.changes.items()
    return Effect(
        mechanism=mechanism,
        value=value,
        log_speedup=idea.log_speedup_mean,
        sd=max(idea.log_speedup_sd, _FEWEST_DOUBT),
        log_memory=idea.log_memory_mean,
        memory_sd=max(idea.log_memory_sd, _FEWEST_DOUBT),
        source="advisor",
    )


def _suggestion(study: StudyContext, idea: Idea) -> Suggestion:
    space = study.task.space
    configuration = space.normalise({**space.baseline(), **idea.changes})
    return Suggestion(candidate=Candidate(configuration=configuration), source="advisor", reason=idea.reason)


def _budget(study: StudyContext) -> Budget:
    options, state = study.created.options, study.state
    done = len(state.counted(TrialKind.SEARCH))
    allowed = None
    if options.gpu_hours is not None:
        allowed = options.gpu_hours * (1.0 - study.task.settings.budget.verification_share)
    return Budget(
        trials=options.trials,
        trials_left=None if options.trials is None else max(0, options.trials - done),
        gpu_hours=allowed,
        gpu_hours_left=None if allowed is None else max(0.0, allowed - spent_gpu_hours(state)),
    )


def _baseline_cost(state: StudyState) -> float:
    costs = [trial.outcome.gpu_hours for trial in state.of_kind(TrialKind.BASELINE) if trial.outcome]
    return sum(costs) / len(costs) if costs else 1.0
