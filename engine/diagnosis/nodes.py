"""How the nodes of a cluster behaved, from where the study's own trials ran; a pure function of the journal.

A node is compared with the others by runs of the same configuration: log step time = configuration + node,
ordinary least squares, Student-t interval. Nothing is said with fewer than MIN_RUNS runs on the node.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Literal

from engine.journal.state import StudyState, TrialState
from engine.models.student_t import student_quantile
from engine.schema.base import Record
from engine.schema.trial import OutcomeKind, TrialKind

MIN_RUNS = 3
SLOW_BY = 0.03
"""A node is slow when the lower end of its slowdown lies above this share."""
FAILING_AFTER = 2
"""Infrastructure failures in a row after which a node is avoided."""
MOST_EXCLUDED = 2
LEVEL = 0.99
_LEAST_DOF = 2

Verdict = Literal["ok", "slow", "failing"]


class Slowdown(Record):
    """Step time on a node over that on the others, minus one; the interval covers it with LEVEL."""

    share: float
    low: float
    high: float
    runs: int


class NodeReport(Record):
    """What the study knows of one node.

    trials: ended trials that used it; voids: those that infrastructure broke, whoever was to blame;
    failures_in_a_row: voids that may be this node's, since a trial last ran through on it.
    slowdown: None where the runs do not allow a comparison. note: why a bad node is not excluded.
    """

    name: str
    trials: int
    voids: int
    failures_in_a_row: int
    slowdown: Slowdown | None
    verdict: Verdict
    excluded: bool = False
    note: str | None = None


def node_reports(state: StudyState) -> tuple[NodeReport, ...]:
    """A report on every node that a trial ran on, in the order in which they were first used."""
    ended = [trial for trial in state.trials.values() if trial.outcome is not None]
    ended.sort(key=lambda trial: (trial.finished_at or 0.0, trial.trial_id))
    names = list(dict.fromkeys(name for trial in ended for name in _touched(trial)))
    reports = [_report(name, ended) for name in names]
    chosen = _excluded(reports, needed=max((len(_nodes(trial)) for trial in ended), default=1))
    return tuple(_decided(report, chosen) for report in reports)


def excluded_nodes(state: StudyState) -> tuple[str, ...]:
    """Nodes that no further trial should use, the worst first.

    At most MOST_EXCLUDED, and only while as many other nodes are known as a trial needs: an exclusion that
    leaves too few would wait in the queue for ever.
    """
    bad = [report for report in node_reports(state) if report.excluded]
    return tuple(report.name for report in sorted(bad, key=_badness, reverse=True))


def node_values(state: StudyState) -> list[dict[str, Any]]:
    """The reports as JSON values."""
    return [report.model_dump(mode="json") for report in node_reports(state)]


def _nodes(trial: TrialState) -> tuple[str, ...]:
    return trial.outcome.nodes if trial.outcome is not None else ()


def _touched(trial: TrialState) -> tuple[str, ...]:
    """Nodes that a trial used or broke on."""
    suspects = trial.outcome.suspect_nodes if trial.outcome is not None else ()
    return (*_nodes(trial), *suspects)


def _report(name: str, ended: Sequence[TrialState]) -> NodeReport:
    used = [trial for trial in ended if name in _touched(trial)]
    streak = 0
    for trial in used:
        if trial.outcome is None or trial.outcome.kind is OutcomeKind.CANCELLED:
            continue
        if trial.outcome.kind is not OutcomeKind.VOID:
            streak = 0
        elif name in trial.outcome.suspect_nodes:
            streak += 1
    slowdown = _slowdown(name, ended)
    verdict: Verdict = "ok"
    if slowdown is not None and slowdown.low > SLOW_BY:
        verdict = "slow"
    if streak >= FAILING_AFTER:
        verdict = "failing"
    return NodeReport(
        name=name,
        trials=len(used),
        voids=sum(trial.outcome is not None and trial.outcome.kind is OutcomeKind.VOID for trial in used),
        failures_in_a_row=streak,
        slowdown=slowdown,
        verdict=verdict,
    )


def _slowdown(name: str, ended: Sequence[TrialState]) -> Slowdown | None:
    """The node's effect beside one constant a configuration; None without runs on both sides."""
    cells: dict[str, tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    for trial in ended:
        time_s = _step_time_s(trial)
        if time_s is not None:
            here = name in _nodes(trial)
            cells[trial.proposed.candidate.key()][0 if here else 1].append(math.log(time_s))
    pairs = [cell for cell in cells.values() if cell[0] and cell[1]]
    runs = sum(len(here) for here, _ in pairs)
    dof = sum(len(here) + len(there) - 1 for here, there in pairs) - 1
    if runs < MIN_RUNS or dof < _LEAST_DOF:
        return None
    weights = [len(here) * len(there) / (len(here) + len(there)) for here, there in pairs]
    gaps = [statistics.fmean(here) - statistics.fmean(there) for here, there in pairs]
    effect = math.fsum(w * gap for w, gap in zip(weights, gaps, strict=True)) / math.fsum(weights)
    squares = math.fsum(_scatter(values) for pair in pairs for values in pair)
    squares += math.fsum(w * (gap - effect) ** 2 for w, gap in zip(weights, gaps, strict=True))
    half = student_quantile(float(dof), 0.5 + 0.5 * LEVEL) * math.sqrt(squares / dof / math.fsum(weights))
    return Slowdown(
        share=math.expm1(effect), low=math.expm1(effect - half), high=math.expm1(effect + half), runs=runs
    )


def _step_time_s(trial: TrialState) -> float | None:
    """The step time of a full run that may be compared; None for others."""
    outcome = trial.outcome
    if outcome is None or outcome.kind is not OutcomeKind.COMPLETED or outcome.truncated:
        return None
    if trial.proposed.kind is TrialKind.RETEST or outcome.measurement is None or not outcome.nodes:
        return None
    return outcome.measurement.step_time_s


def _scatter(values: Sequence[float]) -> float:
    """Sum of squared differences from the mean."""
    mean = statistics.fmean(values)
    return math.fsum((value - mean) ** 2 for value in values)


def _badness(report: NodeReport) -> tuple[int, float]:
    return report.failures_in_a_row, report.slowdown.low if report.slowdown is not None else 0.0


def _excluded(reports: Sequence[NodeReport], needed: int) -> set[str]:
    bad = sorted((each for each in reports if each.verdict != "ok"), key=_badness, reverse=True)
    room = max(0, min(MOST_EXCLUDED, len(reports) - max(1, needed)))
    return {report.name for report in bad[:room]}


def _decided(report: NodeReport, chosen: set[str]) -> NodeReport:
    if report.verdict == "ok":
        return report
    if report.name in chosen:
        return report.model_copy(update={"excluded": True})
    full = len(chosen) == MOST_EXCLUDED
    note = (
        f"not excluded: {MOST_EXCLUDED} others are" if full else "not excluded: too few other nodes are known"
    )
    return report.model_copy(update={"note": note})
