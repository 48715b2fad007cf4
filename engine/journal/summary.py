"""What a study says about itself in JSON: the keys that `run`, `report` and `status` print."""

from __future__ import annotations

from typing import Any

from engine import units
from engine.journal.state import StudyState, TrialState
from engine.schema.job import AllocationUse
from engine.schema.study import FinalistVerdict
from engine.schema.trial import Attribution, Candidate, OutcomeKind, TrialKind

_VERIFICATION_KINDS = (TrialKind.VERIFICATION,)


def summarise(state: StudyState, study_dir: str) -> dict[str, Any]:
    """The summary of a study at any moment; values that do not exist yet are null."""
    return {
        "study_dir": study_dir,
        "state": state.stage.value,
        "note": state.note,
        "interrupted_stage": state.interrupted_stage.value if state.interrupted_stage else None,
        "task": state.created.task_name if state.created else None,
        "trials": [trial_value(trial) for trial in state.trials.values()],
        "best": _best_value(state),
        "baseline": _baseline_value(state),
        "gpu_hours": gpu_hours(state),
        "search_ended": state.search_ended,
        "deployed": state.deployed.model_dump() if state.deployed else None,
    }


def trial_value(trial: TrialState) -> dict[str, Any]:
    """One trial; `outcome` is null while it runs."""
    outcome = trial.outcome
    return {
        "id": trial.trial_id,
        "kind": trial.proposed.kind.value,
        "origin": trial.proposed.origin,
        "reason": trial.proposed.reason,
        "configuration": trial.proposed.candidate.configuration,
        "patches": [patch.name for patch in trial.proposed.candidate.patches],
        "outcome": outcome.kind.value if outcome else None,
        "speedup": outcome.speedup if outcome else None,
        "attribution": attribution_value(outcome.attribution) if outcome else None,
        "cost_gpu_hours": outcome.gpu_hours if outcome else None,
        "queue_wait_s": outcome.queue_wait_s if outcome else None,
        "nodes": list(outcome.nodes) if outcome else [],
    }


def attribution_value(attribution: Attribution | None) -> dict[str, Any] | None:
    """An attribution with its contract keys."""
    return None if attribution is None else attribution.model_dump(mode="json")


def candidate_value(candidate: Candidate) -> dict[str, Any]:
    """A candidate with its contract keys."""
    return {
        "configuration": candidate.configuration,
        "patches": [patch.name for patch in candidate.patches],
    }


def verified_verdict(state: StudyState) -> FinalistVerdict | None:
    """The verified finalist with the highest lower end, None when nothing was proven."""
    verified = [verdict for verdict in state.verdicts or () if verdict.verified and verdict.speedup_ci]
    return max(verified, key=lambda verdict: verdict.speedup_ci or (0.0, 0.0), default=None)


def gpu_hours(state: StudyState) -> dict[str, float]:
    """GPU-hours by what became of them; verification is counted apart from the search.

    `idle` are the hours of allocations that were held across trials while no trial ran in them.
    """
    spent = dict.fromkeys(("succeeded", "failed", "cancelled", "idle", "verification"), 0.0)
    for trial in state.trials.values():
        if trial.outcome is None:
            continue
        hours = trial.outcome.gpu_hours
        if trial.proposed.kind in _VERIFICATION_KINDS:
            spent["verification"] += hours
        elif trial.outcome.kind is OutcomeKind.COMPLETED:
            spent["succeeded"] += hours
        elif trial.outcome.kind is OutcomeKind.CANCELLED:
            spent["cancelled"] += hours
        else:
            spent["failed"] += hours
    spent["idle"] = _idle_gpu_hours(state)
    return {"total": sum(spent.values()), **spent}


def _idle_gpu_hours(state: StudyState) -> float:
    """Hours of the held allocations without those of the trials in them, which count by their outcome.

    A trial of which it is not known where it ran is taken to have run in them: nothing counts twice.
    """
    if not state.allocations:
        return 0.0
    held = sum(_held_gpu_hours(use, state.updated_at) for use in state.allocations.values())
    inside = sum(
        trial.outcome.gpu_hours
        for trial in state.trials.values()
        if trial.outcome
        and (trial.outcome.allocation is None or trial.outcome.allocation in state.allocations)
    )
    return max(0.0, held - inside)


def _held_gpu_hours(use: AllocationUse, now: float | None) -> float:
    """GPU-hours of one allocation until its end, or until now where it is still held."""
    until = use.ended_at if use.ended_at is not None else now
    if use.started_at is None or until is None:
        return 0.0
    return units.gpu_hours(max(0.0, until - use.started_at), use.gpus)


def _best_value(state: StudyState) -> dict[str, Any] | None:
    verdict = verified_verdict(state)
    if verdict is not None:
        return {
            "candidate": candidate_value(verdict.candidate),
            "speedup": verdict.speedup,
            "speedup_ci": list(verdict.speedup_ci) if verdict.speedup_ci else None,
            "verified": True,
        }
    if state.verdicts is not None:
        unproven = [verdict for verdict in state.verdicts if verdict.speedup is not None]
        best = max(unproven, key=lambda each: each.speedup or 0.0, default=None)
        if best is None:
            return None
        return {
            "candidate": candidate_value(best.candidate),
            "speedup": best.speedup,
            "speedup_ci": list(best.speedup_ci) if best.speedup_ci else None,
            "verified": False,
        }
    return _best_measured(state)


def _best_measured(state: StudyState) -> dict[str, Any] | None:
    measured = [
        (trial.outcome.speedup, trial)
        for trial in state.of_kind(TrialKind.SEARCH, TrialKind.MANUAL)
        if trial.outcome and trial.outcome.kind is OutcomeKind.COMPLETED and trial.outcome.speedup
    ]
    if not measured or state.diagnosis is None:
        return None
    speedup, trial = max(measured, key=lambda pair: pair[0])
    return {
        "candidate": candidate_value(trial.proposed.candidate),
        "speedup": speedup,
        "speedup_ci": None,
        "verified": False,
    }


def _baseline_value(state: StudyState) -> dict[str, Any] | None:
    diagnosis = state.diagnosis
    if diagnosis is None:
        return None
    return {
        "step_time_s": diagnosis.step_time_s,
        "tokens_per_s": diagnosis.tokens_per_s,
        "mfu": diagnosis.mfu,
        "peak_memory_gib": diagnosis.peak_memory_gib,
        "noise_pct": 100.0 * diagnosis.noise.between,
        "smallest_effect_pct": 100.0 * diagnosis.noise.smallest_effect,
        "phases": diagnosis.phases.model_dump(),
    }
