"""The journal as the search sees it: a pure function of the study's state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from engine.advisor.permitted import is_permitted
from engine.advisor.rules import advise
from engine.invariants.check import worth_repeating
from engine.journal.state import StudyState, TrialState
from engine.journal.summary import gpu_hours as hours_by_use
from engine.mechanisms.record import Mechanism
from engine.mechanisms.table import load_mechanisms
from engine.schema.task import TaskFile
from engine.schema.trial import FailureKind, OutcomeKind, TrialKind
from engine.search.exclusion import find_exclusions
from engine.search.ideas import effects_of, suggestions_of
from engine.search.lattice import build_lattice
from engine.search.view import Budget, Observation, SearchInput
from engine.stages.context import StudyContext
from engine.task.load import Task
from engine.task.space import ParameterSpace
from engine.trial.attribution.bound import censored_bound_gib
from engine.trial.measure import effective_step_time, mean_step_time
from engine.units import gpu_hours

_SHOWN = (TrialKind.BASELINE, TrialKind.SEARCH, TrialKind.RETEST)


def search_input(study: StudyContext) -> SearchInput:
    """What the next decision depends on; trials in flight are part of it."""
    state, settings = study.state, study.task.settings
    running = [trial for trial in state.open_trials() if study.is_searching(trial)]
    diagnosis = state.diagnosis
    if diagnosis is None:
        raise AssertionError("the search follows the diagnosis")
    mechanisms = load_mechanisms()
    space = _permitted(study.task, mechanisms)
    ideas = advise(diagnosis, space, mechanisms, settings) if study.created.options.advisor == "rules" else []
    return SearchInput(
        space=space,
        observations=tuple(observations(state, settings)),
        noise_sd=diagnosis.noise.between,
        noise_dof=float(diagnosis.noise.dof),
        budget=_budget(study),
        seed=study.created.options.seed,
        effects=effects_of(ideas),
        suggestions=suggestions_of(ideas, space),
        baseline_memory_gib=diagnosis.peak_memory_gib,
        memory_limit_gib=settings.allocation.memory_limit_gib,
        headroom=settings.constraints.memory_headroom,
        full_trial_gpu_hours=_baseline_cost(state),
        wait_gpu_hours=_waiting_price(study),
        pending=tuple(trial.proposed.candidate for trial in running),
        is_retesting=any(trial.proposed.kind is TrialKind.RETEST for trial in running),
    )


def observations(state: StudyState, settings: TaskFile) -> list[Observation]:
    """Finished trials that may teach a model, in the order in which they ended."""
    finished = state.counted(*_SHOWN)
    finished.sort(key=lambda trial: (trial.finished_at or 0.0, trial.trial_id))
    reference = _reference(state, settings)
    return [_observation(trial, settings, reference) for trial in finished]


def spent_gpu_hours(state: StudyState) -> float:
    """GPU-hours of all trials so far, failures and the idle hours of held allocations included."""
    trials = sum(trial.outcome.gpu_hours for trial in state.trials.values() if trial.outcome)
    return trials + hours_by_use(state)["idle"]


def committed_gpu_hours(state: StudyState) -> float:
    """What the trials in flight will cost, should each be as dear as the dearest so far."""
    dearest = max((trial.outcome.gpu_hours for trial in state.trials.values() if trial.outcome), default=0.0)
    return len(state.open_trials()) * dearest


def is_known_conflict(study: StudyContext, failed: Sequence[TrialState]) -> bool:
    """Whether one combination that is confirmed not to work explains all of some failures."""
    search = search_input(study)
    lattice = build_lattice(search)
    rows = lattice.rows([trial.proposed.candidate for trial in failed])
    return find_exclusions(search, lattice).explains_all(rows)


def _observation(trial: TrialState, settings: TaskFile, reference: float | None) -> Observation:
    outcome = trial.outcome
    if outcome is None:
        raise AssertionError("only finished trials are observed")
    measured, attribution = outcome.measurement, outcome.attribution
    bound = censored_bound_gib(attribution) if attribution else None
    failure = attribution.kind if attribution else None
    if settings.allocation.device == "cpu" and bound is not None:
        failure = FailureKind.OOM_GPU  # the training device's memory is the host's
    if outcome.kind is OutcomeKind.REJECTED and worth_repeating(outcome.invariants):
        failure = FailureKind.SLOW  # it trained as it should, only not steadily: no conflict of its settings
    return Observation(
        candidate=trial.proposed.candidate,
        trial_id=trial.trial_id,
        trial_kind=trial.proposed.kind,
        kind=outcome.kind,
        truncated=outcome.truncated,
        log_speedup=_log_speedup(trial, reference, settings.measurement.horizon_updates),
        memory_gib=measured.peak_memory_gib if measured else None,
        memory_bound_gib=bound,
        failure=failure,
        signature=attribution.signature if attribution else None,
        implicated=attribution.implicated if attribution else (),
        gpu_hours=outcome.gpu_hours,
    )


def _reference(state: StudyState, settings: TaskFile) -> float | None:
    completed = [
        trial.outcome.measurement
        for trial in state.of_kind(TrialKind.BASELINE)
        if trial.outcome and trial.outcome.kind is OutcomeKind.COMPLETED and trial.outcome.measurement
    ]
    return mean_step_time(completed, settings.measurement.horizon_updates)


def _log_speedup(trial: TrialState, reference: float | None, horizon: int) -> float | None:
    """Against all baseline runs; a short re-test only tells whether the candidate runs."""
    outcome = trial.outcome
    if outcome is None or outcome.kind is not OutcomeKind.COMPLETED or outcome.measurement is None:
        return None
    if reference is None or trial.proposed.kind is TrialKind.RETEST:
        return None
    return math.log(reference / effective_step_time(outcome.measurement, horizon))


def _permitted(task: Task, mechanisms: Mapping[str, Mechanism]) -> ParameterSpace:
    """The space without values that the task's constraints forbid; the unchanged job's always stay."""
    constraints = task.settings.constraints
    parameters = []
    for parameter in task.space.parameters:
        mechanism = mechanisms.get(parameter.mechanism)
        allowed = [
            value
            for value in parameter.values
            if value == parameter.default or is_permitted(mechanism, value, constraints)
        ]
        initial = tuple(value for value in parameter.initial if value in allowed)
        parameters.append(replace(parameter, values=tuple(allowed), initial=initial))
    return replace(task.space, parameters=tuple(parameters))


def _budget(study: StudyContext) -> Budget:
    options, state = study.created.options, study.state
    running = [trial for trial in state.open_trials() if trial.proposed.kind is TrialKind.SEARCH]
    done = len(state.counted(TrialKind.SEARCH)) + len(running)
    spent = spent_gpu_hours(state) + committed_gpu_hours(state)
    allowed = None
    if options.gpu_hours is not None:
        allowed = options.gpu_hours * (1.0 - study.task.settings.budget.verification_share)
    return Budget(
        trials=options.trials,
        trials_left=None if options.trials is None else max(0, options.trials - done),
        gpu_hours=allowed,
        gpu_hours_left=None if allowed is None else max(0.0, allowed - spent),
    )


def _baseline_cost(state: StudyState) -> float:
    costs = [trial.outcome.gpu_hours for trial in state.of_kind(TrialKind.BASELINE) if trial.outcome]
    return sum(costs) / len(costs) if costs else 1.0


def _waiting_price(study: StudyContext) -> float:
    """A turn in the queue, charged as if the allocation stood idle: a trial that fails wastes one too."""
    wait_s = study.state.predicted_queue_wait() if study.created.options.executor == "slurm" else None
    return 0.0 if wait_s is None else gpu_hours(wait_s, study.task.settings.allocation.world_size)
