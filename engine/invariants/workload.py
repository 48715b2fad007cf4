"""Workload: the same model, the same samples and tokens."""

from __future__ import annotations

from engine.invariants.comparison import Comparison, Row, describe_updates
from engine.invariants.findings import Findings
from engine.schema.model_state import ModelState, Parameter, start_state
from engine.schema.run_view import hash_total, total

ROUNDED_NORM_TOLERANCE = 0.02
"""Relative; the norm of a parameter after rounding to another format."""


def model_identity(comparison: Comparison, findings: Findings) -> None:
    """The same parameter names, shapes, trainability, ties and initial values, whatever the sharding."""
    before, after = start_state(comparison.baseline), start_state(comparison.candidate)
    if isinstance(before, str):
        findings.unseen(f"the baseline's parameters: {before}", essential=True)
        return
    if isinstance(after, str):
        findings.lost("the parameter signature", after)
        return
    _same_names(before, after, findings)
    shared = sorted(before.parameters.keys() & after.parameters.keys())
    blind: list[str] = []
    lost: list[str] = []
    rounded = 0
    for name in shared:
        old, new = before.parameters[name], after.parameters[name]
        _same_kind(old, new, findings)
        if old.dtype != new.dtype:
            rounded += 1
            _rounded_value(old, new, findings)
        elif old.same_content(new) is None:
            (lost if old.hashes else blind).append(name)
        elif not old.same_content(new):
            findings.fail(
                f"{name} starts from other values{_norms(old, new)}",
                expected=f"initial values of the baseline in {len(shared)} parameters",
                observed=f"other values in {name}",
            )
    if lost:
        why = _unreadable(comparison)
        findings.lost(f"the initial values of {len(lost)} parameters ({lost[0]})", why)
    if before.ties != after.ties:
        findings.fail(
            "other parameters share their storage", expected=_ties(before.ties), observed=_ties(after.ties)
        )
    if rounded:
        findings.unseen(
            f"initial values of {rounded} parameters, which are stored in another format", essential=True
        )
    if blind:
        findings.unseen(f"initial values of {len(blind)} parameters ({blind[0]})", essential=True)
    count = sum(parameter.numel for parameter in before.parameters.values())
    findings.passed(
        f"{len(shared)} parameters ({count} elements) with the same shapes, ties and initial values"
    )


def _unreadable(comparison: Comparison) -> str | None:
    signatures = [rank.start_signature for rank in comparison.candidate.ranks]
    return next((each.unavailable for each in signatures if each and each.unavailable), None)


def _same_names(before: ModelState, after: ModelState, findings: Findings) -> None:
    missing = sorted(before.parameters.keys() - after.parameters.keys())
    added = sorted(after.parameters.keys() - before.parameters.keys())
    if missing or added:
        parts = [f"{len(missing)} missing ({missing[0]})"] if missing else []
        parts += [f"{len(added)} new ({added[0]})"] if added else []
        findings.fail(
            f"the parameters differ: {', '.join(parts)}",
            expected=f"{len(before.parameters)} parameters",
            observed=f"{len(after.parameters)} parameters",
        )


def _same_kind(old: Parameter, new: Parameter, findings: Findings) -> None:
    if old.shape != new.shape:
        findings.fail(
            f"{old.name} has another shape", expected=str(list(old.shape)), observed=str(list(new.shape))
        )
    if old.trainable is not None and old.trainable != new.trainable:
        words = {True: "trainable", False: "frozen", None: "not seen"}
        findings.fail(
            f"{old.name} is {words[new.trainable]}",
            expected=words[old.trainable],
            observed=words[new.trainable],
        )


def _rounded_value(old: Parameter, new: Parameter, findings: Findings) -> None:
    if old.norm is None or new.norm is None:
        return
    if abs(old.norm - new.norm) > ROUNDED_NORM_TOLERANCE * old.norm:
        findings.fail(
            f"{old.name} starts from other values{_norms(old, new)}",
            expected=f"norm {old.norm:.6g}",
            observed=f"norm {new.norm:.6g} in {new.dtype}",
        )


def _norms(old: Parameter, new: Parameter) -> str:
    if old.norm is None or new.norm is None:
        return ""
    return f" (norm {new.norm:.6g} instead of {old.norm:.6g})"


def _ties(ties: frozenset[frozenset[str]]) -> str:
    return "; ".join(sorted(" = ".join(sorted(group)) for group in ties)) or "no shared storage"


def data_identity(comparison: Comparison, findings: Findings) -> None:
    """The same samples in every update, or in the whole run where the order is free."""
    pairs = comparison.pairs(findings, "the hash of the samples", "data_hash", _sample_hash)
    _same_hashes(comparison, "samples", pairs, findings)
    labels = [
        (index, before, after)
        for index, before_row, after_row in comparison.rows()
        for before, after in ((_label_hash(before_row), _label_hash(after_row)),)
        if before is not None and after is not None and before[0] == after[0]
    ]
    _same_hashes(comparison, "labels", [(index, old[1], new[1]) for index, old, new in labels], findings)
    if len(labels) < comparison.updates:
        missing = comparison.updates - len(labels)
        findings.unseen(f"labels of {missing} updates, which were not seen in the same place of both runs")


def _sample_hash(row: Row) -> int | None:
    return hash_total(record.data_hash for record in row)


def _label_hash(row: Row) -> tuple[str, int] | None:
    """Where the labels were seen, and their hash."""
    sources = {record.label_hash_source for record in row}
    value = hash_total(record.label_hash for record in row)
    return None if value is None or len(sources) != 1 else (str(sources.pop()), value)


def _same_hashes(
    comparison: Comparison, what: str, pairs: list[tuple[int, int, int]], findings: Findings
) -> None:
    if not pairs:
        return
    if comparison.context.data_order == "same_multiset":
        old, new = hash_total(pair[1] for pair in pairs), hash_total(pair[2] for pair in pairs)
        differing = [] if old == new else [pair[0] for pair in pairs]
    else:
        differing = [index for index, before, after in pairs if before != after]
    if differing:
        findings.fail(
            f"other {what} in {describe_updates(differing)}",
            expected=f"the {what} of the baseline",
            observed=f"other {what} in {len(differing)} of {len(pairs)} updates",
        )
    else:
        findings.passed(f"the same {what} in {len(pairs)} updates")


def tokens_per_update(comparison: Comparison, findings: Findings) -> None:
    """As many real tokens and label tokens in every update; padding does not count where it can be told."""
    label_updates = _compare_labels(comparison, findings)
    masked = [
        _tokens(row, "real_tokens") is not None
        for view in (comparison.baseline, comparison.candidate)
        for row in view.rows[: comparison.updates]
    ]
    field = "real_tokens" if masked and all(masked) else "tokens"
    pairs = comparison.pairs(
        findings, "tokens per update", "tokens", lambda row: _tokens(row, field), essential=not label_updates
    )
    wrong = [
        (index, before, after)
        for index, before, after in pairs
        if before != after and not (index in label_updates and _samples_agree(comparison, index))
    ]
    if wrong:
        _, before, after = wrong[0]
        findings.fail(
            f"{after} tokens instead of {before} in {describe_updates([entry[0] for entry in wrong])}",
            expected=f"{before} tokens per update",
            observed=f"{after} tokens",
        )
    elif pairs:
        findings.passed(
            f"as many tokens as in the baseline in {len(pairs)} updates ({pairs[-1][2]} in the last)"
        )


def _tokens(row: Row, field: str) -> int | None:
    return total(row, lambda record: getattr(record, field))


def _samples_agree(comparison: Comparison, index: int) -> bool:
    """Padding is masked out of the hash: with equal hashes, fewer positions mean less padding."""
    old = _sample_hash(comparison.baseline.rows[index])
    return old is not None and old == _sample_hash(comparison.candidate.rows[index])


def _compare_labels(comparison: Comparison, findings: Findings) -> set[int]:
    """Updates whose label tokens were compared and agree."""
    agreeing: set[int] = set()
    elsewhere, lost = 0, []
    for index, before_row, after_row in comparison.rows():
        before, after = _tokens(before_row, "label_tokens"), _tokens(after_row, "label_tokens")
        if before is None:
            continue
        if after is None:
            old, new = _label_hash(before_row), _label_hash(after_row)
            if old is None or old != new:
                lost.append(index)
        elif before == after:
            agreeing.add(index)
        elif _label_sources(before_row) != _label_sources(after_row):
            elsewhere += 1
        else:
            findings.fail(
                f"{after} label tokens in update {index} instead of {before}",
                expected=f"{before} label tokens",
                observed=f"{after} label tokens",
            )
    if lost:
        findings.lost(
            f"label tokens of {describe_updates(lost)}", comparison.candidate.why_unseen("label_tokens")
        )
    if elsewhere:
        findings.unseen(f"label tokens of {elsewhere} updates, counted in different places of the two runs")
    if agreeing:
        findings.passed(f"as many label tokens as in the baseline in {len(agreeing)} updates")
    return agreeing


def _label_sources(row: Row) -> set[str | None]:
    return {record.label_source for record in row}
