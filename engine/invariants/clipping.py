"""Update scheduling: gradients are clipped alike, by torch's function or by the script's own."""

from __future__ import annotations

from engine.invariants.comparison import Comparison, Row
from engine.invariants.findings import Findings
from engine.invariants.hyper_values import same_value
from engine.schema.run_view import norm_reading

APPLIED_TOLERANCE = 0.10
"""Relative difference of the norms that the optimizers used, where only one run's clipping is visible."""

LIMIT_ROUNDING = 1e-3
"""A clipped norm may exceed its limit by rounding."""


def same_clipping(comparison: Comparison, findings: Findings) -> None:
    """Equal clip limits; where one run clips in code of its own, the norms that result must show it."""
    pairs = comparison.pairs(findings, "gradient clipping", "clip", _clip_limits, essential=False)
    hidden: list[int] = []
    for index, old, new in pairs:
        if bool(old) != bool(new):
            hidden.append(index)
        elif len(old) != len(new) or not all(same_value(a, b) for a, b in zip(old, new, strict=True)):
            findings.fail(
                f"clips gradients at {_words(new)} in update {index} instead of {_words(old)}",
                expected=f"clipping at {_words(old)}",
                observed=f"clipping at {_words(new)}",
            )
    if hidden:
        _compare_by_norms(comparison, hidden, {index: (old, new) for index, old, new in pairs}, findings)
    elif pairs and pairs[-1][1]:
        findings.passed(f"clipping at {_words(pairs[-1][1])}")
    elif pairs:
        findings.unseen("gradient clipping, of which no call was seen")


def _compare_by_norms(
    comparison: Comparison,
    indices: list[int],
    limits: dict[int, tuple[tuple[float, ...], tuple[float, ...]]],
    findings: Findings,
) -> None:
    """Only one run calls torch's clipping: both optimizers must have used clipped gradients all the same."""
    active = False
    for index in indices:
        old, new = limits[index]
        before, after = (
            norm_reading(comparison.baseline.rows[index]),
            norm_reading(comparison.candidate.rows[index]),
        )
        shown, hidden = (before, after) if old else (after, before)
        limit = max(old or new)
        if shown is None or hidden is None:
            continue
        gap = abs(hidden.applied - shown.applied)
        if hidden.applied > limit * (1 + LIMIT_ROUNDING) or gap > APPLIED_TOLERANCE * abs(shown.applied):
            findings.fail(
                f"clips gradients at {_words(new)} in update {index} instead of {_words(old)}: "
                f"norm {hidden.applied:.6g} where clipping leaves {shown.applied:.6g}",
                expected=f"clipping at {_words(old)}",
                observed=f"clipping at {_words(new)}",
            )
            return
        active = active or shown.whole > limit
    if active:
        findings.passed("clipping in the script's own code, with the norms of torch's")
    elif limits[indices[0]][0]:
        findings.lost("gradient clipping", "no norm reached the limit, so it cannot be told from its effect")
    else:
        findings.unseen("gradient clipping, which only the candidate calls and no norm reached")


def _clip_limits(row: Row) -> tuple[float, ...] | None:
    """Distinct clip limits of one update over all ranks; () = no clipping."""
    if not row or any(record.clip_max is None for record in row):
        return None
    limits: list[float] = []
    for value in sorted(limit for record in row for limit in record.clip_max or ()):
        if not limits or not same_value(limits[-1], value):
            limits.append(value)
    return tuple(limits)


def _words(limits: tuple[float, ...]) -> str:
    return ", ".join(f"{limit:.6g}" for limit in limits) or "nothing"
