"""Update scheduling: the same learning rates, update by update."""

from __future__ import annotations

from collections.abc import Iterable

from engine.invariants.comparison import Comparison, Row
from engine.invariants.findings import Findings
from engine.invariants.hyper_values import Hyper, rounded, same_value, show
from engine.schema.evidence import HyperValue

Trace = tuple[tuple[tuple[tuple[str, HyperValue], ...], ...], ...]


def learning_rate_trace(comparison: Comparison, findings: Findings) -> None:
    """Learning rate, weight decay, betas, momentum and eps agree in every update, group and rank."""
    pairs = comparison.pairs(findings, "learning rates", "hyper", _trace)
    for index, old, new in pairs:
        if _layout(old) == _layout(new):
            flat_old, flat_new = _flat(old), _flat(new)
        else:
            flat_old, flat_new = _distinct(old), _distinct(new)
        _compare_traces(index, flat_old, flat_new, findings)
    for index, row in enumerate(comparison.candidate.rows):
        traces = [_record_trace(record.hyper) for record in row if record.hyper is not None]
        if any(not _same_trace(traces[0], other) for other in traces[1:]):
            findings.fail(
                f"the ranks use different hyper-parameters in update {index}",
                expected="equal on all ranks",
                observed="different",
            )
    if pairs:
        findings.passed(f"learning rate, weight decay, betas and eps agree in {len(pairs)} updates")


def _record_trace(hyper: Iterable[Iterable[dict[str, HyperValue]]]) -> Trace:
    return tuple(tuple(tuple(sorted(group.items(), key=_name)) for group in groups) for groups in hyper)


def _name(item: tuple[str, HyperValue]) -> str:
    return item[0]


def _trace(row: Row) -> Trace | None:
    if not row or any(record.hyper is None or "hyper" in record.nonfinite for record in row):
        return None
    return _record_trace(row[0].hyper or ()) or None


def _layout(trace: Trace) -> tuple[int, ...]:
    return tuple(len(groups) for groups in trace)


def _flat(trace: Trace) -> list[Hyper]:
    return [group for groups in trace for group in groups]


def _distinct(trace: Trace) -> list[Hyper]:
    """Distinct groups in a fixed order: merged or split groups of equal settings are the same."""
    unique = {tuple((name, rounded(value)) for name, value in group) for group in _flat(trace)}
    return sorted(unique, key=repr)


def _same_trace(old: Trace, new: Trace) -> bool:
    flat_old, flat_new = _flat(old), _flat(new)
    return len(flat_old) == len(flat_new) and all(
        a.keys() == b.keys() and all(same_value(a[name], b[name]) for name in a)
        for a, b in zip(map(dict, flat_old), map(dict, flat_new), strict=True)
    )


def _compare_traces(index: int, old: list[Hyper], new: list[Hyper], findings: Findings) -> None:
    if len(old) != len(new):
        findings.fail(
            f"update {index} has {len(new)} different groups instead of {len(old)}",
            expected=f"{len(old)} groups",
            observed=f"{len(new)} groups",
        )
        return
    for number, (before, after) in enumerate(zip(map(dict, old), map(dict, new), strict=True)):
        for name, value in before.items():
            if name not in after:
                findings.lost(f"{name} of group {number} in update {index}")
            elif not same_value(value, after[name]):
                findings.fail(
                    f"{name} of group {number} in update {index} is {show(after[name])} "
                    f"instead of {show(value)}",
                    expected=f"{name} = {show(value)}",
                    observed=f"{name} = {show(after[name])}",
                )
