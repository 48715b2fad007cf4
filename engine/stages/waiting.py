"""Trials that wait in a queue are told about, seldom enough to be read."""

from __future__ import annotations

from dataclasses import dataclass

from engine.journal.state import TrialState
from engine.ports import Clock
from engine.schema.job import JobState, JobStatus
from engine.stages.hooks import Hooks, StudyEvent

FIRST_TOLD_S = 120.0
"""A shorter wait is nothing to talk about."""
STALLED_S = 3600.0
"""From here on a trial counts as stalled: one event each."""
_PAUSE_S = 60.0
_GROWTH = 1.5


@dataclass
class _Told:
    """The last sentence about a trial: when (unix seconds), after which wait, with which reason."""

    at: float
    waited_s: float
    reason: str | None


class WaitingWatch:
    """Says that a trial waits and why: at most once a minute, and more seldom the longer nothing changes."""

    def __init__(self, clock: Clock, hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._told: dict[str, _Told] = {}
        self._stalled: set[str] = set()

    def __call__(self, trial: TrialState, status: JobStatus) -> None:
        """Take one reading of a job."""
        if status.state is not JobState.PENDING:
            self._told.pop(trial.trial_id, None)
            return
        since = trial.submitted_at if trial.submitted_at is not None else trial.proposed_at
        now = self._clock.now()
        waited_s = now - since
        if waited_s >= STALLED_S and trial.trial_id not in self._stalled:
            self._stalled.add(trial.trial_id)
            self._hooks.happened(StudyEvent.STALLED)
        told = self._told.get(trial.trial_id)
        if waited_s < FIRST_TOLD_S or (told is not None and not _is_due(told, now, waited_s, status.reason)):
            return
        self._told[trial.trial_id] = _Told(now, waited_s, status.reason)
        self._hooks.say(_sentence(trial.trial_id, waited_s, status.reason))


def _is_due(told: _Told, now: float, waited_s: float, reason: str | None) -> bool:
    if now - told.at < _PAUSE_S:
        return False
    return reason != told.reason or waited_s >= _GROWTH * told.waited_s


def _sentence(trial_id: str, waited_s: float, reason: str | None) -> str:
    minutes = int(waited_s // 60.0)
    waited = f"{minutes} min" if minutes < 120 else f"{waited_s / 3600.0:.1f} h"
    return f"{trial_id} waits for {waited}" + (f": {reason}" if reason else "")
