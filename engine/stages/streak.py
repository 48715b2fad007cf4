"""Failure after failure of one class: a person should look before more is spent."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from engine.journal.state import TrialState
from engine.schema.trial import Attribution, FailureKind, OutcomeKind

STREAK = 5
"""So many failures of one class in a row pause a study."""

_MEMORY = frozenset(
    {FailureKind.OOM_GPU, FailureKind.OOM_HOST, FailureKind.OOM_SHM, FailureKind.OOM_KERNEL_RESOURCE}
)
_NOT_SEEN = (OutcomeKind.VOID, OutcomeKind.CANCELLED)
_CAUSE_CHARACTERS = 300


class StudyPaused(Exception):
    """The engine stopped by itself and waits for a person; caught by the study loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def crash_streak(trials: Iterable[TrialState]) -> list[TrialState] | None:
    """The latest failures, when at least STREAK in a row are of one class (kind and signature).

    What memory explains neither counts nor interrupts, and neither does what infrastructure or a person
    ended; a run that was measured ends the row.

    Args:
        trials: Trials in any order; those without an outcome are passed over.
    """
    row: list[TrialState] = []
    for trial in sorted(trials, key=lambda trial: trial.finished_at or 0.0):
        outcome = trial.outcome
        if outcome is None or outcome.kind in _NOT_SEEN:
            continue
        why = outcome.attribution
        if outcome.kind is not OutcomeKind.FAILED or why is None:
            row.clear()
        elif why.kind not in _MEMORY:
            if row and _class_of(row[-1]) != _class_of(trial):
                row.clear()
            row.append(trial)
    return row if len(row) >= STREAK else None


def pause_note(row: list[TrialState], study: Path) -> str:
    """What a person is told: the class, the trials, what to do."""
    why = row[-1].outcome.attribution if row[-1].outcome else None
    kind, cause = ("unknown", "no cause known") if why is None else (why.kind.value, why.cause)
    names = ", ".join(trial.trial_id for trial in row)
    log = study / "trials" / row[-1].trial_id / "launcher.log"
    return (
        f"paused: {len(row)} trials in a row failed alike ({kind}): {names}; the last: "
        f"{cause[:_CAUSE_CHARACTERS]}; see {log}, mend the cause, then "
        f"`infrarsi resume {shlex.quote(str(study))}` goes on"
    )


def _class_of(trial: TrialState) -> tuple[FailureKind, str | None] | None:
    why: Attribution | None = trial.outcome.attribution if trial.outcome else None
    return None if why is None else (why.kind, why.signature)
