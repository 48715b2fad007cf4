"""What every stage works with, and how a stage gets a trial run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from engine.errors import InfrastructureError
from engine.invariants.check import worth_repeating
from engine.journal.session import StudySession
from engine.journal.state import StudyState, TrialState
from engine.ports import Clock, JobExecutor
from engine.schema.study import Prediction, StudyCreated, TrialProposed
from engine.schema.trial import Candidate, Outcome, OutcomeKind, TrialKind
from engine.task.load import Task
from engine.trial.runner import TrialRunner

VOID_RETRIES = 2
"""A trial that infrastructure broke is run again this often."""

DISTURBED_RETRIES = 2
"""A run that fails nothing but statistical invariants is repeated this often before it counts."""

OPEN_RETRIES = 1
"""A failure whose blame is open (a hang, SIGBUS, a bare SIGKILL) is repeated this often before it counts."""

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
    """One running study."""

    session: StudySession
    task: Task
    executor: JobExecutor
    clock: Clock
    runner: TrialRunner

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
        retry_of: str | None = None,
    ) -> TrialState:
        """Run one candidate to its outcome.

        A run that infrastructure broke is repeated up to VOID_RETRIES times, one that a disturbed machine may
        have spoiled up to DISTURBED_RETRIES times, one whose failure is not clearly the candidate's
        OPEN_RETRIES times.

        Raises:
            InfrastructureError: VOID_RETRIES repetitions were void too.
            StopRequested: a person asked to stop; the trial is recorded as cancelled.
        """
        void = disturbed = unclear = 0
        while True:
            proposed = self._proposal(kind, candidate, origin, reason, predicted, pair, retry_of)
            self.session.record(proposed)
            trial = self.state.trials[proposed.trial_id]
            outcome = self.runner.run(trial)
            if outcome.kind is OutcomeKind.VOID:
                void += 1
                if void > VOID_RETRIES:
                    raise self._broken(trial)
            elif _is_unclear(outcome):
                unclear += 1
                if unclear > OPEN_RETRIES:
                    return trial
            else:
                disturbed += 1
                if disturbed > DISTURBED_RETRIES or not worth_repeating(outcome.invariants):
                    return trial
            retry_of = proposed.trial_id

    def repeat_interrupted(self) -> None:
        """Run the last trial again where an earlier engine died before it could do so."""
        last = next(reversed(self.state.trials.values()), None)
        if last is None or last.outcome is None or last.proposed.kind is TrialKind.MANUAL:
            return
        is_open = _is_unclear(last.outcome) or worth_repeating(last.outcome.invariants)
        if is_open and last.proposed.retry_of is None:
            asked = last.proposed
            self.run_trial(
                asked.kind,
                asked.candidate,
                origin=asked.origin,
                reason=asked.reason,
                predicted=asked.predicted,
                pair=asked.pair,
                retry_of=asked.trial_id,
            )

    def _broken(self, trial: TrialState) -> InfrastructureError:
        attribution = trial.outcome.attribution if trial.outcome else None
        cause = attribution.cause if attribution else "no cause known"
        return InfrastructureError(
            f"trial {trial.trial_id} was broken {1 + VOID_RETRIES} times by infrastructure: {cause}",
            file=str(self.session.folder.trial(trial.trial_id)),
            hint="mend the cause, then `infrarsi resume` the study",
        )

    def _proposal(
        self,
        kind: TrialKind,
        candidate: Candidate,
        origin: str,
        reason: str,
        predicted: Prediction | None,
        pair: int | None,
        retry_of: str | None,
    ) -> TrialProposed:
        number = 1 + len(self.state.of_kind(kind))
        trial_id = f"{_PREFIX[kind]}{number:03d}"
        measurement = self.task.settings.measurement
        warmup, measured = measurement.warmup_updates, measurement.measured_updates
        if kind is TrialKind.RETEST:
            warmup, measured = _MINIMUM_WARMUP, 1
        else:
            warmup += self._hidden_extension(kind, trial_id)
        return TrialProposed(
            trial_id=trial_id,
            kind=kind,
            origin=origin,
            reason=reason,
            candidate=candidate,
            predicted=predicted,
            pair=pair,
            retry_of=retry_of,
            total_updates=warmup + measured,
            measured_updates=measured,
        )

    def _hidden_extension(self, kind: TrialKind, trial_id: str) -> int:
        """0 or 1 further warm-up updates, so that a script cannot know where the window begins.

        Baselines alternate: whatever a candidate's length, a baseline ends after as many updates.
        """
        if kind is not TrialKind.BASELINE:
            return _coin(self.created.nonce, trial_id)
        outcomes = [trial.outcome for trial in self.state.of_kind(kind)]
        completed = sum(each is not None and each.kind is OutcomeKind.COMPLETED for each in outcomes)
        return (_coin(self.created.nonce, kind) + completed) % 2


def _is_unclear(outcome: Outcome) -> bool:
    """Whether a run failed and neither the candidate nor anything else is plainly to blame."""
    why = outcome.attribution
    return outcome.kind is OutcomeKind.FAILED and why is not None and why.blame_candidate is None


def _coin(nonce: str, name: str) -> int:
    """0 or 1 as the nonce decides."""
    return hashlib.sha256(f"{nonce}{name}".encode()).digest()[0] % 2
