"""One line of narration per journal entry; '' where there is nothing to say."""

from __future__ import annotations

import textwrap

from engine.journal.state import StudyState, TrialState
from engine.schema.study import (
    Deployed,
    Diagnosed,
    Entry,
    FinalistVerdict,
    SearchEnded,
    StageEntered,
    TrialFinished,
    TrialProposed,
    VerificationDone,
    VerificationPlanned,
)
from engine.schema.trial import Outcome, OutcomeKind, TrialKind
from infrarsi_tui.display.progress import in_words, seconds_left

_CAUSE_WIDTH = 200
"""Causes may quote long messages; the report has them whole."""


def narration(entry: Entry, state: StudyState) -> str:
    """What happened, for a person who watches."""
    match entry.data:
        case StageEntered(stage=stage, note=note):
            return f"── {stage.value}" + (f": {note}" if note else "")
        case TrialProposed():
            return _proposed(state.trials[entry.data.trial_id], state)
        case TrialFinished(trial_id=trial_id, outcome=outcome):
            trial = state.trials[trial_id]
            left = in_words(seconds_left(state, entry.at))
            return f"   {_label(trial):<18}{outcome_words(outcome, trial.proposed.kind)}   ({left})"
        case Diagnosed():
            return _diagnosed(state)
        case SearchEnded(reason=reason):
            return f"   search ended: {reason}"
        case VerificationPlanned(finalists=finalists, pairs=pairs):
            if not finalists:
                return "   no candidate beat the noise: nothing to verify"
            return f"   verifying {len(finalists)} finalist(s) with {pairs} interleaved pairs each"
        case VerificationDone(verdicts=verdicts):
            return "\n".join(f"   {_verdict(index, verdict)}" for index, verdict in enumerate(verdicts, 1))
        case Deployed(target=target, branch=branch, commits=commits):
            return f"   deployed to {target}, branch {branch}, {len(commits)} commit(s)"
    return ""


def outcome_words(outcome: Outcome, kind: TrialKind) -> str:
    """An outcome in a few words with its numbers; the unchanged job has no speed-up."""
    is_unchanged = kind in (TrialKind.BASELINE, TrialKind.PERTURBATION)
    if outcome.kind is OutcomeKind.COMPLETED and outcome.measurement is not None:
        measured = outcome.measurement
        parts = [f"{measured.step_time_s:.3f} s/update"]
        if outcome.speedup is not None and not is_unchanged:
            parts.append(f"{outcome.speedup:.2f}×")
        if measured.peak_memory_gib is not None:
            parts.append(f"{measured.peak_memory_gib:.2f} GiB")
        return "  ".join(parts)
    if outcome.kind is OutcomeKind.REJECTED:
        failed = [result.name for result in outcome.invariants if result.status == "failed"]
        return f"rejected: {', '.join(failed)}"
    if outcome.attribution is None:
        return f"{outcome.kind.value}: no cause known"
    cause = textwrap.shorten(outcome.attribution.cause, _CAUSE_WIDTH, placeholder=" …")
    return f"{outcome.kind.value} ({outcome.attribution.kind.value}): {cause}"


def _proposed(trial: TrialState, state: StudyState) -> str:
    proposed = trial.proposed
    if proposed.kind is not TrialKind.SEARCH:
        return ""
    planned = state.created.options.trials if state.created else None
    number = sum(each.proposed.retry_of is None for each in state.of_kind(TrialKind.SEARCH))
    of = f"/{planned}" if planned else ""
    again = " again" if proposed.retry_of else ""
    expected = ""
    if proposed.predicted is not None:
        expected = f"; expected {proposed.predicted.speedup:.2f}×"
        if proposed.predicted.p_fits is not None:
            expected += f", fits {100 * proposed.predicted.p_fits:.0f} %"
    return f"   trial {number}{of}{again} [{proposed.origin}] {proposed.reason}{expected}"


def _label(trial: TrialState) -> str:
    kind = trial.proposed.kind
    return trial.trial_id if kind is TrialKind.SEARCH else f"{trial.trial_id} {kind.value}"


def _diagnosed(state: StudyState) -> str:
    diagnosis = state.diagnosis
    if diagnosis is None:
        return ""
    return (
        f"   baseline {diagnosis.step_time_s:.3f} s/update, noise between runs "
        f"{100 * diagnosis.noise.between:.1f} %, smallest effect that can be told "
        f"{100 * diagnosis.noise.smallest_effect:.1f} %; bottleneck: {diagnosis.bottleneck}"
    )


def _verdict(index: int, verdict: FinalistVerdict) -> str:
    speedup, interval = verdict.speedup, verdict.speedup_ci
    if speedup is None or interval is None:
        return f"finalist {index}: could not be measured again"
    word = "VERIFIED" if verdict.verified else "not verified"
    return f"finalist {index}: {speedup:.3f}× [{interval[0]:.3f}, {interval[1]:.3f}] (99 %)  {word}"
