"""Trials that run at the same time, each with its repetitions; the journal stays the only state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

from engine.errors import InfrastructureError
from engine.journal.session import StopRequested, StudySession
from engine.journal.state import TrialState
from engine.stages.repetition import broken, is_void, needs_repetition
from engine.trial.runner import TrialRunner

Repeat = Callable[[TrialState], TrialState]
"""Proposes a finished trial once more."""


class Flight:
    """Up to `slots` trials in flight.

    Attributes:
        trials: Those that run, in the order in which they were started.
        problem: Why no trial may be started any more, once infrastructure broke one too often.
    """

    def __init__(self, session: StudySession, runner: TrialRunner, repeat: Repeat, slots: int) -> None:
        self.trials: list[TrialState] = []
        self.problem: InfrastructureError | None = None
        self._session = session
        self._runner = runner
        self._repeat = repeat
        self._slots = slots
        self._is_draining = False

    @property
    def has_room(self) -> bool:
        """Whether another trial may be started."""
        return len(self.trials) < self._slots and not self._is_draining

    def drain(self) -> None:
        """Start and repeat nothing from now on."""
        self._is_draining = True

    @contextlib.contextmanager
    def guard(self) -> Iterator[None]:
        """An interrupt inside ends every trial in flight; whatever else leaves lets them run."""
        try:
            yield
        except (StopRequested, KeyboardInterrupt):
            self._runner.cancel_all(self.trials)
            raise

    def adopt(self, trials: Iterable[TrialState]) -> None:
        """Take over what an earlier engine left without an outcome: followed if submitted, else run."""
        for trial in trials:
            if self._runner.is_claimed(trial):
                self.trials.append(trial)
            else:
                self.launch(trial)

    def launch(self, trial: TrialState) -> list[TrialState]:
        """Start a proposed trial.

        Returns:
            The trials that ended for good by that: one whose patch does not fit needs no job.
        """
        self.trials.append(trial)
        return [] if self._runner.start(trial) is None else self._landed(trial)

    def wait(self) -> list[TrialState]:
        """Wait until at least one trial has its outcome, and start the repetitions that this asks for.

        Returns:
            Those that ended for good; empty when all that ended are repeated.
        """
        return [final for trial in self._runner.wait_for_any(self.trials) for final in self._landed(trial)]

    def _landed(self, trial: TrialState) -> list[TrialState]:
        self.trials.remove(trial)
        if needs_repetition(self._session.state, trial):
            return [] if self._is_draining else self.launch(self._repeat(trial))
        if is_void(trial) and self.problem is None:
            self.problem = broken(trial, str(self._session.folder.trial(trial.trial_id)))
            self._is_draining = True
        return [trial]
