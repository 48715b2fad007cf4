"""Stage 2: measure the unchanged job: at least three runs, one numerically equivalent perturbation."""

from __future__ import annotations

from engine.diagnosis.diagnose import diagnose
from engine.errors import BaselineError
from engine.journal.state import TrialState
from engine.schema.study import Diagnosed, Stage, StageEntered
from engine.schema.trial import OutcomeKind, TrialKind
from engine.stages.context import StudyContext
from engine.stages.verification import PAIRS

BASELINE_RUNS = 3


def run_diagnosis(study: StudyContext) -> None:
    """Complete the diagnosis.

    Raises:
        BaselineError: the unchanged job does not run, or contradicts itself.
    """
    if study.state.diagnosis is not None:
        return
    study.session.record(StageEntered(stage=Stage.DIAGNOSIS))
    for kind, wanted, reason in (
        (TrialKind.BASELINE, BASELINE_RUNS, "the unchanged job"),
        (TrialKind.PERTURBATION, 1, "the unchanged job with weights moved by one ulp: the band of the loss"),
    ):
        while len(_completed(study, kind)) < wanted:
            trial = study.run_trial(kind, study.baseline_candidate(), origin="diagnosis", reason=reason)
            _require_completed(study, trial)
    baselines = _completed(study, TrialKind.BASELINE)
    perturbed = _completed(study, TrialKind.PERTURBATION)
    study.session.record(
        Diagnosed(
            diagnosis=diagnose(
                baselines={trial.trial_id: study.runner.evidence(trial.trial_id) for trial in baselines},
                measurements=[trial.outcome.measurement for trial in baselines if trial.outcome],
                perturbed=[study.runner.evidence(trial.trial_id) for trial in perturbed],
                settings=study.task.settings,
                pairs=PAIRS,
            )
        )
    )


def _completed(study: StudyContext, kind: TrialKind) -> list[TrialState]:
    return [
        trial
        for trial in study.state.of_kind(kind)
        if trial.outcome is not None and trial.outcome.kind is OutcomeKind.COMPLETED
    ]


def _require_completed(study: StudyContext, trial: TrialState) -> None:
    outcome = trial.outcome
    if outcome is None or outcome.kind is OutcomeKind.COMPLETED:
        return
    failed = [result for result in outcome.invariants if result.status == "failed"]
    cause = outcome.attribution.cause if outcome.attribution else "; ".join(each.reason for each in failed)
    raise BaselineError(
        f"the unchanged training job does not run ({trial.trial_id}): {cause}",
        file=str(study.session.folder.trial(trial.trial_id) / "launcher.log"),
        hint="mend the job so that it trains by itself, then `infrarsi resume` the study",
    )
