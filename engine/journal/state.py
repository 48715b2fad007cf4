"""StudyState: a pure fold over the journal's entries."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

from engine.schema.diagnosis import Diagnosis
from engine.schema.job import AllocationUse, JobHandle
from engine.schema.study import (
    AllocationUsed,
    Deployed,
    Diagnosed,
    Entry,
    EpochStarted,
    FinalistVerdict,
    SearchEnded,
    Stage,
    StageEntered,
    StudyCreated,
    TrialFinished,
    TrialProposed,
    TrialSubmitted,
    VerificationDone,
    VerificationPlanned,
)
from engine.schema.trial import Outcome, OutcomeKind, TrialKind

_RECENT_WAITS = 8
"""Trials over which the queue is remembered: it changes within hours."""


@dataclass
class TrialState:
    """proposed ──► submitted ──► finished (outcome)."""

    proposed: TrialProposed
    proposed_at: float
    handle: JobHandle | None = None
    submitted_at: float | None = None
    outcome: Outcome | None = None
    finished_at: float | None = None

    @property
    def trial_id(self) -> str:
        """The trial's name."""
        return self.proposed.trial_id


@dataclass
class StudyState:
    """Everything known about a study; rebuilt from the journal, never stored."""

    created: StudyCreated | None = None
    created_at: float | None = None
    updated_at: float | None = None
    epochs: int = 0
    stage: Stage = Stage.INITIALIZATION
    interrupted_stage: Stage | None = None
    note: str | None = None
    trials: dict[str, TrialState] = field(default_factory=dict)
    diagnosis: Diagnosis | None = None
    search_ended: str | None = None
    plan: VerificationPlanned | None = None
    plan_number: int = 0
    verdicts: tuple[FinalistVerdict, ...] | None = None
    deployed: Deployed | None = None
    allocations: dict[str, AllocationUse] = field(default_factory=dict)

    def apply(self, entry: Entry) -> None:
        """Fold one entry in."""
        self.updated_at = entry.at
        match entry.data:
            case StudyCreated() as created:
                self.created, self.created_at = created, entry.at
            case EpochStarted():
                self.epochs += 1
            case StageEntered(stage=stage, note=note):
                self._enter(stage, note)
            case TrialProposed() as proposed:
                self.trials[proposed.trial_id] = TrialState(proposed, entry.at)
            case TrialSubmitted(trial_id=trial_id, handle=handle):
                self.trials[trial_id].handle = handle
                self.trials[trial_id].submitted_at = entry.at
            case TrialFinished(trial_id=trial_id, outcome=outcome):
                self.trials[trial_id].outcome = outcome
                self.trials[trial_id].finished_at = entry.at
            case AllocationUsed(use=use):
                self.allocations[use.job_id] = use
            case Diagnosed(diagnosis=diagnosis):
                self.diagnosis = diagnosis
            case SearchEnded(reason=reason):
                self.search_ended = reason
            case VerificationPlanned() as plan:
                self.plan, self.verdicts = plan, None
                self.plan_number += 1
            case VerificationDone(verdicts=verdicts):
                self.verdicts = verdicts
            case Deployed() as deployed:
                self.deployed = deployed

    def _enter(self, stage: Stage, note: str | None) -> None:
        if stage in (Stage.FAILED, Stage.STOPPED) and self.stage not in (Stage.FAILED, Stage.STOPPED):
            self.interrupted_stage = self.stage
        self.stage, self.note = stage, note

    def of_kind(self, *kinds: TrialKind) -> list[TrialState]:
        """Trials of some kinds, in order of proposal."""
        return [trial for trial in self.trials.values() if trial.proposed.kind in kinds]

    def counted(self, *kinds: TrialKind) -> list[TrialState]:
        """Finished trials that say something: not void, not cancelled, and not repeated later."""
        repeated = {trial.proposed.retry_of for trial in self.trials.values()}
        return [
            trial
            for trial in self.of_kind(*kinds)
            if trial.outcome is not None
            and trial.outcome.kind not in (OutcomeKind.VOID, OutcomeKind.CANCELLED)
            and trial.trial_id not in repeated
        ]

    def queue_waits_s(self) -> list[float]:
        """Seconds between submission and start of every trial of which both are known, by their end."""
        finished = sorted(self.trials.values(), key=lambda trial: (trial.finished_at or 0.0, trial.trial_id))
        outcomes = [trial.outcome for trial in finished if trial.outcome is not None]
        return [each.queue_wait_s for each in outcomes if each.queue_wait_s is not None]

    def predicted_queue_wait(self) -> float | None:
        """Seconds that the next trial is likely to wait: the median of the recent ones; None without any."""
        recent = self.queue_waits_s()[-_RECENT_WAITS:]
        return statistics.median(recent) if recent else None

    def open_trials(self) -> list[TrialState]:
        """Trials without an outcome: running, or interrupted by a crash."""
        return [trial for trial in self.trials.values() if trial.outcome is None]


def replay(entries: Iterable[Entry]) -> StudyState:
    """The state after all entries."""
    state = StudyState()
    for entry in entries:
        state.apply(entry)
    return state
