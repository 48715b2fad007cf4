"""Update scheduling: the same optimizer with the same hyper-parameters and groups."""

from __future__ import annotations

from collections import Counter

from engine.invariants.comparison import Comparison
from engine.invariants.findings import Findings
from engine.invariants.hyper_values import Hyper, rounded, same_value, show
from engine.schema.evidence import HyperValue, OptimizerGroup, OptimizerRecord
from engine.schema.run_view import RunView

_WRAPPERS = {
    "zeroredundancyoptimizer",
    "acceleratedoptimizer",
    "distributedoptimizer",
    "deepspeedzerooptimizer",
}
_SAME_FAMILY = {"fusedadamw": "adamw"}
_NOT_IDENTITY = {
    "lr",
    "initial_lr",
    "foreach",
    "fused",
    "capturable",
    "differentiable",
    "params",
    "param_names",
    "process_group",
    "parameters_as_bucket_view",
    "overlap_with_ddp",
}


def optimizer_identity(comparison: Comparison, findings: Findings) -> None:
    """The same family, hyper-parameters and amount of parameters per group; how it is implemented is free."""
    before, after = _optimizers(comparison.baseline), _optimizers(comparison.candidate)
    if not before:
        why = comparison.baseline.why_unseen("optimizer")
        findings.unseen(f"the baseline's optimizer was not seen: {why}", essential=True)
        return
    if not after:
        findings.lost("the optimizer", comparison.candidate.why_unseen("optimizer"))
        return
    _same_families(before, after, findings)
    old, new = _groups(before), _groups(after)
    if len(old) != len(new):
        findings.fail(
            f"{len(new)} kinds of parameter groups instead of {len(old)}",
            expected="; ".join(_describe(dict(hyper)) for hyper in old),
            observed="; ".join(_describe(dict(hyper)) for hyper in new),
        )
        return
    for (old_hyper, old_sizes), (new_hyper, new_sizes) in zip(
        sorted(old.items(), key=_order), sorted(new.items(), key=_order), strict=True
    ):
        _same_group(dict(old_hyper), dict(new_hyper), old_sizes, new_sizes, findings)
    names = ", ".join(sorted({record.class_name for record in after[0]}))
    findings.passed(f"{names} with the hyper-parameters and groups of the baseline")


def _optimizers(view: RunView) -> list[tuple[OptimizerRecord, ...]]:
    """The optimizers of every rank; empty where any rank shows none."""
    ranks = [rank.optimizers for rank in view.ranks]
    return ranks if ranks and all(ranks) else []


def _families(ranks: list[tuple[OptimizerRecord, ...]]) -> set[str]:
    names = {record.class_name.rsplit(".", 1)[-1].lower() for records in ranks for record in records}
    return {_SAME_FAMILY.get(name, name) for name in names} - _WRAPPERS


def _same_families(
    before: list[tuple[OptimizerRecord, ...]], after: list[tuple[OptimizerRecord, ...]], findings: Findings
) -> None:
    old, new = _families(before), _families(after)
    if old and new and old != new:
        findings.fail(
            f"the optimizer is {', '.join(sorted(new))} instead of {', '.join(sorted(old))}",
            expected=", ".join(sorted(old)),
            observed=", ".join(sorted(new)),
        )
    elif not old or not new:
        findings.unseen("the optimizer's family behind its wrapper (the hyper-parameters are compared)")


def _identity(group: OptimizerGroup) -> Hyper:
    return tuple(
        sorted((name, rounded(value)) for name, value in group.hyper.items() if name not in _NOT_IDENTITY)
    )


def _groups(ranks: list[tuple[OptimizerRecord, ...]]) -> dict[Hyper, list[tuple[int, int] | None]]:
    """Groups of equal hyper-parameters → (tensors, elements) of each rank; None where a size is unseen."""
    table: dict[Hyper, list[Counter[str] | None]] = {}
    for number, records in enumerate(ranks):
        for group in (group for record in records for group in record.groups):
            sizes = table.setdefault(_identity(group), [Counter() for _ in ranks])
            counter = sizes[number]
            if counter is None or group.tensors is None or group.numel is None:
                sizes[number] = None
            else:
                counter.update({"tensors": group.tensors, "numel": group.numel})
    return {
        hyper: [None if size is None else (size["tensors"], size["numel"]) for size in sizes]
        for hyper, sizes in table.items()
    }


def _order(entry: tuple[Hyper, object]) -> str:
    return repr(entry[0])


def _same_group(
    old: dict[str, HyperValue],
    new: dict[str, HyperValue],
    old_sizes: list[tuple[int, int] | None],
    new_sizes: list[tuple[int, int] | None],
    findings: Findings,
) -> None:
    for name, value in old.items():
        if name not in new:
            findings.lost(f"the hyper-parameter {name}")
        elif not same_value(value, new[name]):
            findings.fail(
                f"{name} is {show(new[name])} instead of {show(value)}",
                expected=f"{name} = {show(value)}",
                observed=f"{name} = {show(new[name])}",
            )
    before, after = _whole_sizes(old_sizes), _whole_sizes(new_sizes)
    if not before:
        findings.unseen("the sizes of the parameter groups")
    elif not after:
        findings.lost("the sizes of the parameter groups")
    elif not before & after:
        findings.fail(
            "a parameter group holds another number of elements",
            expected=_show_sizes(before),
            observed=_show_sizes(after),
        )


def _whole_sizes(sizes: list[tuple[int, int] | None]) -> set[int]:
    """Possible element counts of the whole group: that of a replica, or the sum of the parts."""
    known = [size[1] for size in sizes if size is not None]
    if not known or len(known) < len(sizes):
        return set()
    return {sum(known), *({known[0]} if len(set(known)) == 1 else ())}


def _show_sizes(sizes: set[int]) -> str:
    return " or ".join(f"{size} elements" for size in sorted(sizes))


def _describe(hyper: dict[str, HyperValue]) -> str:
    return ", ".join(f"{name}={show(value)}" for name, value in hyper.items()) or "no hyper-parameters"
