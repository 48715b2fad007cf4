"""The report for people. Holds no path, host or user name."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from engine.diagnosis.nodes import NodeReport, Slowdown, node_reports
from engine.journal.state import StudyState, TrialState
from engine.journal.summary import gpu_hours, verified_verdict
from engine.schema.diagnosis import Diagnosis
from engine.schema.study import FinalistVerdict
from engine.schema.trial import Candidate, Outcome, OutcomeKind, Phases, TrialKind
from engine.search.effects import effect_table
from engine.search.models import fit_models
from engine.stages.context import StudyContext
from engine.stages.search_input import search_input


def render_report(study: StudyContext) -> str:
    """Markdown of a study whose verification is done."""
    state = study.state
    verdict = verified_verdict(state)
    baseline = study.task.space.baseline()
    sections = [
        f"# {study.task.settings.task.name}",
        _headline(state, verdict),
        *([_winner(verdict, baseline)] if verdict else []),
        _verification(state),
        _baseline(state.diagnosis),
        _invariants(verdict or next(iter(state.verdicts or ()), None)),
        _trials(state, baseline),
        _failures(state),
        _effects(study),
        _cost(state),
        _nodes(state),
        _repeat(study),
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def table(header: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """A Markdown table; pipes in cells are escaped."""
    cells = [[str(cell).replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    head = list(header)
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in cells])


def changes(candidate: Candidate, baseline: dict[str, bool | int | float | str]) -> str:
    """What a candidate changes against the baseline, in a few words."""
    parts = [
        f"{name}={value}"
        for name, value in candidate.configuration.items()
        if value != baseline.get(name) or type(value) is not type(baseline.get(name))
    ]
    parts += [f"patch {patch.name}" for patch in candidate.patches]
    return ", ".join(parts) or "the unchanged job"


def _headline(state: StudyState, verdict: FinalistVerdict | None) -> str:
    if verdict is not None and verdict.speedup_ci is not None:
        low, high = verdict.speedup_ci
        return (
            f"**Verified: {verdict.speedup:.3f}× faster** (99 % interval {low:.3f} to {high:.3f}, "
            f"{verdict.pairs} interleaved pairs of independent runs). What is trained is unchanged: "
            "every invariant below passed, or says why it could not be decided."
        )
    reasons = [reason for each in state.verdicts or () for reason in each.reasons]
    because = reasons[0] if reasons else (state.search_ended or "no candidate beat the noise")
    return f"**No verified improvement.** {because[:1].upper()}{because[1:]}."


def _winner(verdict: FinalistVerdict, baseline: dict[str, bool | int | float | str]) -> str:
    rows = [
        (name, baseline.get(name, ""), f"**{value}**" if value != baseline.get(name) else value)
        for name, value in verdict.candidate.configuration.items()
    ]
    text = "## Winning configuration\n\n" + table(("mechanism", "before", "after"), rows)
    if verdict.candidate.patches:
        text += "\n\nPatches: " + ", ".join(patch.name for patch in verdict.candidate.patches)
    return text


def _verification(state: StudyState) -> str:
    if state.plan is None or not state.verdicts:
        return ""
    rows = []
    for index, verdict in enumerate(state.verdicts, 1):
        interval = "not measured"
        if verdict.speedup_ci is not None:
            interval = f"{verdict.speedup_ci[0]:.3f} to {verdict.speedup_ci[1]:.3f}"
        rows.append(
            (
                index,
                "not measured" if verdict.speedup is None else f"{verdict.speedup:.3f}×",
                interval,
                "not measured" if verdict.cpu_speedup is None else f"{verdict.cpu_speedup:.3f}×",
                verdict.pairs,
                "verified" if verdict.verified else "; ".join(verdict.reasons),
            )
        )
    head = ("finalist", "speed-up", "99 % interval", "CPU-second ratio", "pairs", "verdict")
    return (
        "## Verification\n\n"
        f"Planned before the first run: {state.plan.pairs} pairs, baseline and finalists interleaved, "
        "order reversed in every other block. Verified means that the lower end lies above "
        f"{state.plan.threshold:.3f}×.\n\n" + table(head, rows)
    )


def _baseline(diagnosis: Diagnosis | None) -> str:
    if diagnosis is None:
        return ""
    noise = diagnosis.noise
    rows = [
        ("step time", f"{diagnosis.step_time_s:.4f} s"),
        ("tokens per second", _number(diagnosis.tokens_per_s, "{:.0f}")),
        ("MFU", _number(diagnosis.mfu, "{:.1%}", diagnosis.mfu_reason)),
        ("peak memory per rank", _number(diagnosis.peak_memory_gib, "{:.3f} GiB")),
        ("noise within a run", f"{noise.within:.2%}"),
        ("noise between runs", f"{noise.between:.2%} ({noise.runs} runs)"),
        ("smallest effect that can be told", f"{noise.smallest_effect:.2%}"),
        ("bottleneck", diagnosis.bottleneck),
        *_phase_rows(diagnosis.phases),
    ]
    return "## Baseline\n\n" + table(("quantity", "value"), rows)


def _phase_rows(phases: Phases) -> list[tuple[str, str]]:
    return [(f"{name} per update", _number(value, "{:.4f} s")) for name, value in phases.model_dump().items()]


def _number(value: float | None, form: str, reason: str | None = None) -> str:
    if value is None:
        return f"not available: {reason}" if reason else "not visible here"
    return form.format(value)


def _invariants(verdict: FinalistVerdict | None) -> str:
    if verdict is None or not verdict.invariants:
        return ""
    rows = [
        (each.layer, each.name, each.status.value, each.expected or "", each.observed or "", each.reason)
        for each in verdict.invariants
    ]
    return "## Invariants\n\nThe worst verdict over the finalist's independent runs.\n\n" + table(
        ("layer", "invariant", "status", "expected", "observed", "reason"), rows
    )


def _trials(state: StudyState, baseline: dict[str, bool | int | float | str]) -> str:
    shown = state.of_kind(TrialKind.SEARCH, TrialKind.RETEST, TrialKind.MANUAL)
    rows = [
        (
            trial.trial_id,
            trial.proposed.origin,
            changes(trial.proposed.candidate, baseline),
            _outcome(trial.outcome),
            f"{trial.outcome.gpu_hours:.4f}" if trial.outcome else "",
        )
        for trial in shown
    ]
    if not rows:
        return ""
    return "## What was tried\n\n" + table(("trial", "origin", "changes", "outcome", "GPU-hours"), rows)


def _outcome(outcome: Outcome | None) -> str:
    if outcome is None:
        return "not finished"
    if outcome.kind is OutcomeKind.COMPLETED and outcome.speedup is not None:
        return f"{outcome.speedup:.3f}×"
    if outcome.kind is OutcomeKind.REJECTED:
        return "rejected: " + ", ".join(each.name for each in outcome.invariants if each.status == "failed")
    kind = outcome.attribution.kind.value if outcome.attribution else "unknown"
    return f"{outcome.kind.value}: {kind}"


def _failures(state: StudyState) -> str:
    rows = [
        _failure_row(trial) for trial in state.trials.values() if trial.outcome and trial.outcome.attribution
    ]
    if not rows:
        return ""
    return "## Why trials failed\n\n" + table(("trial", "kind", "cause", "implicated"), rows)


def _failure_row(trial: TrialState) -> tuple[str, str, str, str]:
    attribution = trial.outcome.attribution if trial.outcome else None
    if attribution is None:
        return (trial.trial_id, "", "", "")
    return (trial.trial_id, attribution.kind.value, attribution.cause, ", ".join(attribution.implicated))


def _effects(study: StudyContext) -> str:
    """What each measured change alone is believed to be worth, from the models of the search."""
    if not study.state.of_kind(TrialKind.SEARCH):
        return ""
    table_of_effects = effect_table(fit_models(search_input(study)))
    rows = [
        (
            each.label,
            f"{math.exp(each.log_speedup):.2f}×",
            f"{math.exp(each.low):.2f} to {math.exp(each.high):.2f}",
            "" if each.memory_ratio is None else f"{each.memory_ratio:.2f}×",
            each.trials,
        )
        for each in table_of_effects
        if each.trials
    ]
    return (
        "## What was learnt\n\nEstimates of single changes of the unchanged job; they prove nothing.\n\n"
        + table(("change", "speed-up", "90 % interval", "peak memory", "trials"), rows)
    )


def _cost(state: StudyState) -> str:
    spent = gpu_hours(state)
    rows = [(name, f"{hours:.4f}") for name, hours in spent.items()]
    text = "## Cost\n\nGPU-hours by what became of them; on CPU tasks a GPU is a rank."
    if state.allocations:
        text += f" Idle: {len(state.allocations)} held allocations while no trial ran in them."
    text += "\n\n" + table(("what", "GPU-hours"), rows)
    waits = state.queue_waits_s() if state.created and state.created.options.executor == "slurm" else []
    if waits:
        text += (
            f"\n\nMedian wait in the queue: {statistics.median(waits):.0f} s a trial, "
            f"at most {max(waits):.0f} s ({len(waits)} trials)."
        )
    return text


def _nodes(state: StudyState) -> str:
    """How the nodes behaved; nothing where one machine without fault ran everything."""
    reports = node_reports(state)
    if len(reports) < 2 and all(report.verdict == "ok" and not report.voids for report in reports):
        return ""
    rows = [
        (
            report.name,
            report.trials,
            report.voids,
            "not comparable" if report.slowdown is None else f"{1.0 / (1.0 + report.slowdown.share):.3f}×",
            "" if report.slowdown is None else _speeds(report.slowdown),
            _node_verdict(report),
        )
        for report in reports
    ]
    return "## Nodes\n\nSpeed against the other nodes, from runs of the same configurations.\n\n" + table(
        ("node", "trials", "void", "speed", "99 % interval", "verdict"), rows
    )


def _speeds(slowdown: Slowdown) -> str:
    return f"{1.0 / (1.0 + slowdown.high):.3f} to {1.0 / (1.0 + slowdown.low):.3f}"


def _node_verdict(report: NodeReport) -> str:
    words: str = report.verdict
    if report.failures_in_a_row:
        words += f", {report.failures_in_a_row} failures in a row"
    if report.excluded:
        words += ", no longer used"
    return f"{words} ({report.note})" if report.note else words


def _repeat(study: StudyContext) -> str:
    options = study.created.options
    command = f"infrarsi run TASK --seed {options.seed}"
    if options.trials is not None:
        command += f" --trials {options.trials}"
    if options.gpu_hours is not None:
        command += f" --gpu-hours {options.gpu_hours:g}"
    return f"## Repeat\n\n    {command}\n\nTASK is the folder of the task file."
