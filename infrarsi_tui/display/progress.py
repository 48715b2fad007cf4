"""Time left, from what trials have cost so far. Pure functions of the state."""

from __future__ import annotations

import statistics

from engine.journal.state import StudyState, TrialState
from engine.schema.trial import TrialKind
from engine.stages.verification import PAIRS

DIAGNOSIS_RUNS = 4


def seconds_left(state: StudyState, now: float) -> float | None:
    """Expected seconds to the end of the study; None before the first trial has ended.

    Remaining trials are charged the median duration of their kind, unknown kinds the baseline's; search
    trials share the time of those that run beside them.
    """
    typical = _typical_duration(state, TrialKind.BASELINE)
    if typical is None or state.created is None:
        return None
    search = _typical_duration(state, TrialKind.SEARCH) or typical
    running = [trial for trial in state.open_trials() if trial.handle]
    at_once = max(1, len(running))
    left = 0.0
    if state.diagnosis is None:
        left += typical * max(
            0, DIAGNOSIS_RUNS - _finished(state, TrialKind.BASELINE, TrialKind.PERTURBATION)
        )
    planned = state.created.options.trials
    if state.search_ended is None and planned is not None:
        left += search * max(0, planned - _finished(state, TrialKind.SEARCH)) / at_once
    if state.plan is not None:
        runs = state.plan.pairs * (1 + len(state.plan.finalists))
        left += typical * max(0, runs - _finished(state, TrialKind.VERIFICATION))
    elif state.verdicts is None:
        left += PAIRS * (typical + search)
    return max(0.0, left - sum(min(now - trial.proposed_at, typical) for trial in running) / at_once)


def in_words(seconds: float | None) -> str:
    """A duration a person can use."""
    if seconds is None:
        return "time left: known after the first run"
    if seconds < 90:
        return f"about {max(5, round(seconds / 5) * 5):.0f} s left"
    if seconds < 5400:
        return f"about {seconds / 60:.0f} min left"
    return f"about {seconds / 3600:.1f} h left"


def _finished(state: StudyState, *kinds: TrialKind) -> int:
    return sum(trial.outcome is not None for trial in state.of_kind(*kinds))


def _typical_duration(state: StudyState, kind: TrialKind) -> float | None:
    durations = [_duration(trial) for trial in state.of_kind(kind) if trial.finished_at is not None]
    return statistics.median(durations) if durations else None


def _duration(trial: TrialState) -> float:
    return (trial.finished_at or trial.proposed_at) - trial.proposed_at
