"""One candidate against the baseline: what `infrarsi trial` runs instead of a search."""

from __future__ import annotations

from engine.journal.state import TrialState
from engine.schema.study import FinalistVerdict
from engine.schema.trial import Candidate, OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.stages.diagnosis import run_diagnosis
from engine.stages.verification import complete_verification, plan_verification


def run_single(study: StudyContext, candidate: Candidate) -> tuple[TrialState, FinalistVerdict | None]:
    """Run a candidate once; where it trains and keeps the invariants, verify it too.

    Returns:
        The trial, and the verdict of its verification (None when it was not worth one).

    Raises:
        BaselineError: the unchanged job does not run.
    """
    if not study.runner.leaves_scope(candidate):
        run_diagnosis(study)
    trial = study.run_trial(
        TrialKind.MANUAL, candidate, origin="manual", reason="asked for on the command line"
    )
    if trial.outcome is None or trial.outcome.kind is not OutcomeKind.COMPLETED:
        return trial, None
    plan_verification(study, [candidate])
    complete_verification(study)
    return trial, next(iter(study.state.verdicts or ()), None)
