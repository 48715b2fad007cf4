"""Update scheduling: as many samples, steps and clips per update, and the same weights after them."""

from __future__ import annotations

import math

from engine.invariants.clipping import same_clipping
from engine.invariants.comparison import Comparison, Row, describe_updates
from engine.invariants.findings import Findings
from engine.schema.model_state import ModelState, Parameter, end_norm_gap, end_state, start_state
from engine.schema.run_view import RunView, total

END_STATE_TOLERANCE = 0.02
"""Relative difference of a parameter's norm after the last update, where no perturbation run sets it."""

MOVEMENT_TOLERANCE = 0.25
"""Relative difference of how far the norms of all parameters moved together."""

BAND_FACTOR = 3.0
"""Of the spread learnt from reruns; the range of a few runs understates the spread of many."""


def update_cadence(comparison: Comparison, findings: Findings) -> None:
    """Samples, steps and clipping per update as in the baseline, no more skipped ones, the same end state."""
    _same_counts(comparison, findings)
    same_clipping(comparison, findings)
    _skipped(comparison, findings)
    _end_states(comparison, findings)


def _same_counts(comparison: Comparison, findings: Findings) -> None:
    pairs = comparison.pairs(
        findings, "samples per update", "samples", lambda row: total(row, lambda record: record.samples)
    )
    wrong = [entry for entry in pairs if entry[1] != entry[2]]
    if wrong:
        _, before, after = wrong[0]
        findings.fail(
            f"{after} samples instead of {before} in {describe_updates([entry[0] for entry in wrong])}",
            expected=f"{before} samples per update",
            observed=f"{after} samples",
        )
    elif pairs:
        findings.passed(f"{pairs[-1][2]} samples per update")
    steps = comparison.pairs(findings, "optimizer steps", "optimizer", _optimizer_steps)
    for index, old, new in steps:
        if old != new:
            findings.fail(
                f"{_words(new)} optimizer steps per rank in update {index} instead of {_words(old)}",
                expected=f"{_words(old)} steps",
                observed=f"{_words(new)} steps",
            )


def _words(counts: frozenset[int]) -> str:
    return " or ".join(str(count) for count in sorted(counts))


def _optimizer_steps(row: Row) -> frozenset[int] | None:
    """Distinct numbers of steps that the ranks made in one update."""
    counts = [record.counts.optimizer for record in row]
    return None if not counts or None in counts else frozenset(count for count in counts if count is not None)


def _skipped(comparison: Comparison, findings: Findings) -> None:
    pairs = comparison.pairs(
        findings,
        "skipped updates",
        "skipped",
        lambda row: total(row, lambda record: record.counts.skipped),
        essential=False,
    )
    # Per rank, so that another number of ranks does not count as more skips.
    before = sum(pair[1] for pair in pairs) / max(comparison.baseline.run.world_size, 1)
    after = sum(pair[2] for pair in pairs) / max(comparison.candidate.run.world_size, 1)
    if after > before:
        findings.fail(
            f"{after:g} updates per rank were skipped, {before:g} in the baseline",
            expected=f"at most {before:g} skipped updates",
            observed=f"{after:g} skipped updates",
        )


def _end_states(comparison: Comparison, findings: Findings) -> None:
    if len(comparison.baseline.rows) != len(comparison.candidate.rows):
        findings.unseen("the weights at the end (the runs made different numbers of updates)")
        return
    before, after = _both_ends(comparison.baseline), _both_ends(comparison.candidate)
    if isinstance(before, str):
        findings.unseen(f"the weights at the end: {before}")
    elif isinstance(after, str):
        findings.lost("the weights at the end", after)
    else:
        _replicas_agree(before[1], after[1], findings)
        _same_norms(before, after, comparison.context.end_state_band, findings)


def _both_ends(view: RunView) -> tuple[ModelState, ModelState] | str:
    """The states at the start and at the end, or the reason why they cannot be seen."""
    start = start_state(view)
    if isinstance(start, str):
        return start
    end = end_state(view, start)
    return end if isinstance(end, str) else (start, end)


def _replicas_agree(before: ModelState, after: ModelState, findings: Findings) -> None:
    if any(parameter.replicas_differ for parameter in before.parameters.values()):
        return
    apart = sorted(name for name, parameter in after.parameters.items() if parameter.replicas_differ)
    if apart:
        findings.fail(
            f"the ranks end with different weights in {len(apart)} parameters ({apart[0]})",
            expected="equal replicas on all ranks",
            observed=f"{len(apart)} parameters differ between ranks",
        )


def _same_norms(
    before: tuple[ModelState, ModelState],
    after: tuple[ModelState, ModelState],
    band: float | None,
    findings: Findings,
) -> None:
    tolerance = max(END_STATE_TOLERANCE, BAND_FACTOR * (band or 0.0))
    names = sorted(before[1].parameters.keys() & after[1].parameters.keys())
    compared, worst = 0, 0.0
    for name in names:
        old, new = before[1].parameters[name], after[1].parameters[name]
        compared += old.norm is not None and new.norm is not None
        gap = end_norm_gap(before[0].parameters.get(name), old, new)
        if gap is None:  # what starts at zero counts in the movement only
            continue
        worst = max(worst, gap)
        if gap > tolerance:
            findings.fail(
                f"{name} ends with norm {new.norm:.6g} instead of {old.norm:.6g}",
                expected=f"within {tolerance:.2%} of {old.norm:.6g}",
                observed=f"{new.norm:.6g}, {gap:.2%} away",
            )
    _same_movement(before, after, findings)
    if compared:
        findings.passed(f"norms of {compared} parameters after the last update differ by at most {worst:.2%}")
    else:
        findings.unseen("the weights at the end (no content was seen)")


def _norm(parameter: Parameter | None) -> float:
    return parameter.norm if parameter is not None and parameter.norm is not None else 0.0


def _same_movement(
    before: tuple[ModelState, ModelState], after: tuple[ModelState, ModelState], findings: Findings
) -> None:
    old, new = _movement(*before), _movement(*after)
    if old <= 0.0:
        return
    if abs(new - old) > MOVEMENT_TOLERANCE * old:
        findings.fail(
            f"the weights moved {new / old:.2f} times as far as in the baseline",
            expected=f"within {MOVEMENT_TOLERANCE:.0%} of the baseline's movement",
            observed=f"{new / old:.2f} times",
        )


def _movement(start: ModelState, end: ModelState) -> float:
    """Root of the summed squares of the change of every parameter's norm."""
    changes = [
        _norm(end.parameters[name]) - _norm(start.parameters[name])
        for name in sorted(start.parameters.keys() & end.parameters.keys())
    ]
    return math.sqrt(math.fsum(change * change for change in changes))
