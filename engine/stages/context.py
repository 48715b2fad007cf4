"""What every stage works with, and how a stage gets a trial run."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from engine.errors import InfraError, StudyBusyError
from engine.journal.session import StudySession
from engine.journal.state import StudyState, TrialState
from engine.ports import Clock, JobExecutor
from engine.schema.study import Prediction, StudyCreated, TrialProposed
from engine.schema.trial import Candidate, OutcomeKind, TrialKind
from engine.stages.flight import Flight
from engine.stages.hooks import SILENT, Hooks
from engine.stages.repetition import is_void, owed
from engine.stages.streak import StudyPaused, crash_streak, pause_note
from engine.task.load import Task
from engine.trial.runner import TrialRunner

SEARCH_KINDS = (TrialKind.SEARCH, TrialKind.RETEST)
"""What the search stage runs."""

_PREFIX = {
    TrialKind.BASELINE: "b",
    TrialKind.PERTURBATION: "p",
    TrialKind.SEARCH: "t",
    TrialKind.RETEST: "r",
    TrialKind.VERIFICATION: "v",
    TrialKind.MANUAL: "m",
}
_MINIMUM_WARMUP = 1


@dataclass(frozen=True)
class StudyContext:
    """One running study; `already_finished` are the trials that had an outcome when this engine began."""

    session: StudySession
    task: Task
    executor: JobExecutor
    clock: Clock
    runner: TrialRunner
    hooks: Hooks = SILENT
    already_finished: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        finished = [trial.trial_id for trial in self.state.trials.values() if trial.outcome is not None]
        object.__setattr__(self, "already_finished", frozenset(finished))

    @property
    def state(self) -> StudyState:
        """The study so far."""
        return self.session.state

    @property
    def created(self) -> StudyCreated:
        """What was fixed at the start."""
        if self.state.created is None:
            raise AssertionError("the study has no first event")
        return self.state.created

    def baseline_candidate(self) -> Candidate:
        """The unchanged job."""
        return Candidate(configuration=self.task.space.baseline())

    def run_trial(
        self,
        kind: TrialKind,
        candidate: Candidate,
        *,
        origin: str,
        reason: str,
        predicted: Prediction | None = None,
        pair: int | None = None,
        nodelist: tuple[str, ...] = (),
    ) -> TrialState:
        """Run one candidate to its outcome, with the repetitions of engine/stages/repetition.py.

        Raises:
            InfrastructureError: VOID_RETRIES repetitions were void too.
            StudyPaused: the last runs of this kind all failed alike.
            StopRequested: a person asked to stop; the trial is recorded as cancelled.
        """
        return self._fly(
            lambda: self.propose(
                kind,
                candidate,
                origin=origin,
                reason=reason,
                predicted=predicted,
                pair=pair,
                nodelist=nodelist,
            )
        )

    def _fly(self, propose: Callable[[], TrialState]) -> TrialState:
        """Run what is proposed to its outcome; see `run_trial`."""
        flight = self.flight()
        with flight.guard():
            proposed = propose()
            ended = flight.launch(proposed)
            while not ended:
                ended = flight.wait()
        if flight.problem is not None:
            raise flight.problem
        row = crash_streak(self.new_trials(proposed.proposed.kind))
        if row is not None:
            raise StudyPaused(pause_note(row, self.session.folder.root))
        return ended[0]

    def flight(self, slots: int = 1) -> Flight:
        """An empty flight of this study."""
        return Flight(self.session, self.runner, self.propose_again, slots)

    def propose(
        self,
        kind: TrialKind,
        candidate: Candidate,
        *,
        origin: str,
        reason: str,
        predicted: Prediction | None = None,
        pair: int | None = None,
        retry_of: str | None = None,
        nodelist: tuple[str, ...] = (),
    ) -> TrialState:
        """Write down that a trial is wanted; nothing runs yet."""
        number = 1 + len(self.state.of_kind(kind))
        trial_id = f"{_PREFIX[kind]}{number:03d}"
        measurement = self.task.settings.measurement
        warmup, measured = measurement.warmup_updates, measurement.measured_updates
        if kind is TrialKind.RETEST:
            warmup, measured = _MINIMUM_WARMUP, 1
        else:
            warmup += self._hidden_extension(kind, trial_id)
        proposed = TrialProposed(
            trial_id=trial_id,
            kind=kind,
            origin=origin,
            reason=reason,
            candidate=candidate,
            predicted=predicted,
            pair=pair,
            retry_of=retry_of,
            nodelist=nodelist,
            total_updates=warmup + measured,
            measured_updates=measured,
        )
        self.session.record(proposed)
        return self.state.trials[trial_id]

    def propose_again(self, trial: TrialState) -> TrialState:
        """Write down that a finished trial is repeated; after a broken run any node will do."""
        asked = trial.proposed
        return self.propose(
            asked.kind,
            asked.candidate,
            origin=asked.origin,
            reason=asked.reason,
            predicted=asked.predicted,
            pair=asked.pair,
            retry_of=asked.trial_id,
            nodelist=() if is_void(trial) else asked.nodelist,
        )

    def new_trials(self, *kinds: TrialKind) -> list[TrialState]:
        """Trials of some kinds that ended, or will end, under this engine."""
        return [trial for trial in self.state.of_kind(*kinds) if trial.trial_id not in self.already_finished]

    def give_back(self) -> None:
        """Release what is held between trials and note what it has cost; a failure is told, never raised."""
        try:
            self.executor.release()
            self.runner.record_usage()
        except StudyBusyError:
            raise
        except InfraError as error:
            self.hooks.say(f"a held allocation may still be there: {error}")

    def recover(self) -> None:
        """End what an earlier engine left open; trials of a search that goes on are left to it."""
        if not any(self.is_searching(trial) for trial in self.state.open_trials()):
            self.runner.settle_open_trials()
        for trial in owed(self.state):
            if not self.is_searching(trial):
                self._fly(partial(self.propose_again, trial))

    def is_searching(self, trial: TrialState) -> bool:
        """Whether a trial belongs to the search, and that is not over."""
        return self.state.search_ended is None and trial.proposed.kind in SEARCH_KINDS

    def _hidden_extension(self, kind: TrialKind, trial_id: str) -> int:
        """0 or 1 further warm-up updates, so that a script cannot know where the window begins.

        Baselines alternate: whatever a candidate's length, a baseline ends after as many updates.
        """
        if kind is not TrialKind.BASELINE:
            return _coin(self.created.nonce, trial_id)
        outcomes = [trial.outcome for trial in self.state.of_kind(kind)]
        completed = sum(each is not None and each.kind is OutcomeKind.COMPLETED for each in outcomes)
        return (_coin(self.created.nonce, kind) + completed) % 2


def _coin(nonce: str, name: str) -> int:
    """0 or 1 as the nonce decides."""
    return hashlib.sha256(f"{nonce}{name}".encode()).digest()[0] % 2
