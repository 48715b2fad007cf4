"""When a finished trial must be run again: a pure function of the journal, so that no restart forgets it."""

from __future__ import annotations

from engine.errors import InfrastructureError
from engine.invariants.check import worth_repeating
from engine.journal.state import StudyState, TrialState
from engine.schema.trial import Outcome, OutcomeKind, TrialKind

VOID_RETRIES = 2
"""A trial that infrastructure broke is run again this often."""

DISTURBED_RETRIES = 2
"""A run that fails nothing but statistical invariants is repeated this often before it counts."""

OPEN_RETRIES = 1
"""A failure whose blame is open (a hang, SIGBUS, a bare SIGKILL) is repeated this often before it counts."""


def attempts(state: StudyState, trial: TrialState) -> list[Outcome]:
    """Outcomes of a trial and of everything that it repeats, the latest first."""
    outcomes = []
    each: TrialState | None = trial
    while each is not None:
        if each.outcome is not None:
            outcomes.append(each.outcome)
        each = state.trials.get(each.proposed.retry_of or "")
    return outcomes


def is_void(trial: TrialState) -> bool:
    """Whether infrastructure broke a trial."""
    return trial.outcome is not None and trial.outcome.kind is OutcomeKind.VOID


def needs_repetition(state: StudyState, trial: TrialState) -> bool:
    """Whether a finished trial does not count before it ran again.

    A run that infrastructure broke is repeated up to VOID_RETRIES times, one that a disturbed machine may
    have spoiled up to DISTURBED_RETRIES times, one whose failure is not clearly the candidate's
    OPEN_RETRIES times.
    """
    outcome = trial.outcome
    if outcome is None:
        return False
    outcomes = attempts(state, trial)
    void = sum(each.kind is OutcomeKind.VOID for each in outcomes)
    unclear = sum(map(_is_unclear, outcomes))
    if outcome.kind is OutcomeKind.VOID:
        return void <= VOID_RETRIES
    if _is_unclear(outcome):
        return unclear <= OPEN_RETRIES
    return worth_repeating(outcome.invariants) and len(outcomes) - void - unclear <= DISTURBED_RETRIES


def owed(state: StudyState) -> list[TrialState]:
    """Trials whose repetition an earlier engine did not live to propose; void ones are decided anew."""
    repeated = {trial.proposed.retry_of for trial in state.trials.values()}
    return [
        trial
        for trial in state.trials.values()
        if trial.trial_id not in repeated
        and trial.proposed.kind is not TrialKind.MANUAL
        and not is_void(trial)
        and needs_repetition(state, trial)
    ]


def broken(trial: TrialState, folder: str) -> InfrastructureError:
    """What is said when infrastructure broke a trial too often."""
    attribution = trial.outcome.attribution if trial.outcome else None
    cause = attribution.cause if attribution else "no cause known"
    return InfrastructureError(
        f"trial {trial.trial_id} was broken {1 + VOID_RETRIES} times by infrastructure: {cause}",
        file=folder,
        hint="mend the cause, then `infrarsi resume` the study",
    )


def _is_unclear(outcome: Outcome) -> bool:
    """Whether a run failed and neither the candidate nor anything else is plainly to blame."""
    why = outcome.attribution
    return outcome.kind is OutcomeKind.FAILED and why is not None and why.blame_candidate is None
