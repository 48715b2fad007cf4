"""Numerical precision: number formats, losses and gradients."""

from __future__ import annotations

import statistics
from collections.abc import Iterable

from engine.invariants.comparison import Comparison, Row, describe_updates
from engine.invariants.context import Precision
from engine.invariants.findings import Findings
from engine.schema.run_view import RunView, norm_gap, norm_reading, update_loss

GRAD_NORM_TYPICAL = 0.10
"""Relative difference of the gradient norm that the median update may show."""

GRAD_NORM_SINGLE = 0.50
"""The same for any single update."""

BAND_FACTOR = 3.0
"""Of the spread of gradient norms learnt from reruns."""

_LADDER: dict[Precision, int] = {"fp32": 0, "bf16": 1, "fp16": 2, "fp8": 3}
_FLOATS = {"float64": 0, "double": 0, "float32": 0, "float": 0, "bfloat16": 1, "float16": 2, "half": 2}
_WHOLE_PRECISION = 0
_MASTER_PERMITS = {"optimizer_state_precision"}


def precision_floor(comparison: Comparison, findings: Findings) -> None:
    """Compute, parameters, gradients and optimizer state keep the floor; master weights stay whole."""
    floor = comparison.context.precision_floor
    sources = (
        ("autocast formats", _autocast),
        ("parameter formats", _parameters),
        ("gradient formats", _gradients),
    )
    for what, read in sources:
        _check_formats(what, read(comparison.baseline), read(comparison.candidate), floor, findings)
    _check_formats(
        "optimizer state formats",
        _states(comparison.baseline),
        _states(comparison.candidate),
        floor,
        findings,
        essential=False,
    )
    _master_weights(comparison, findings)


def _check_formats(
    what: str,
    before: set[str] | None,
    after: set[str] | None,
    floor: Precision,
    findings: Findings,
    *,
    essential: bool = True,
) -> None:
    if after is None:
        if before is None:
            findings.unseen(f"{what} were not seen in either run", essential=essential)
        else:
            findings.lost(what)
        return
    below = sorted(name for name in after - (before or set()) if _rung(name) > _LADDER[floor])
    if below:
        findings.fail(
            f"{what}: {', '.join(below)} is below the floor {floor}",
            expected=f"{floor} or better, or what the baseline uses ({_list(before)})",
            observed=_list(after),
        )
    else:
        findings.passed(f"{what}: {_list(after)}")


def _list(names: Iterable[str] | None) -> str:
    return ", ".join(sorted(names or ())) or "none"


def _rung(name: str) -> int:
    """0 = 32 bits or more … 3 = 8 bits or fewer, or a format that is not known."""
    if name in _FLOATS:
        return _FLOATS[name]
    return 0 if name.startswith(("int", "uint", "bool", "complex")) else 3


def _plain(name: str) -> str:
    return name.rsplit(":", 1)[-1].removeprefix("torch.")


def _row_formats(view: RunView, field: str) -> set[str] | None:
    lists = [getattr(record, field) for row in view.rows for record in row]
    if not lists or any(names is None for names in lists):
        return None
    return {_plain(name) for names in lists for name in names}


def _autocast(view: RunView) -> set[str] | None:
    return _row_formats(view, "autocast")


def _parameters(view: RunView) -> set[str] | None:
    return _row_formats(view, "param_dtypes")


def _gradients(view: RunView) -> set[str] | None:
    return _row_formats(view, "grad_dtypes")


def _states(view: RunView) -> set[str] | None:
    records = [record for rank in view.ranks for record in rank.optimizers]
    names = {_plain(key) for record in records for key in record.state_dtypes}
    return names or None


def _master_weights(comparison: Comparison, findings: Findings) -> None:
    before, after = _parameters(comparison.baseline), _parameters(comparison.candidate)
    if not before or not after or set(comparison.context.allow) & _MASTER_PERMITS:
        return
    lowered = max(map(_rung, after)) > max(map(_rung, before)) == _WHOLE_PRECISION
    if lowered and not _holds_master_weights(comparison.candidate):
        findings.fail(
            f"the weights are kept in {_list(after)} without a master copy",
            expected=f"weights, or a master copy of them, in {_list(before)}",
            observed=_list(after),
        )


def _holds_master_weights(view: RunView) -> bool:
    keys = {key for rank in view.ranks for record in rank.optimizers for key in record.state_dtypes}
    return any("master" in key and _rung(_plain(key)) == _WHOLE_PRECISION for key in keys)


def loss_trajectory(comparison: Comparison, findings: Findings) -> None:
    """The loss of every update from the first on, two-sided: a lower loss is as wrong as a higher one."""
    context = comparison.context
    for index, row in enumerate(comparison.candidate.rows):
        for rank, record in enumerate(row):
            if "loss" in record.nonfinite:
                findings.fail(
                    f"the loss of rank {rank} in update {index} is not finite",
                    expected="a finite loss",
                    observed="NaN or infinity",
                )
    pairs = comparison.pairs(findings, "the loss", "loss", update_loss)
    worst: tuple[float, int, float, float, float] | None = None
    for index, old, new in pairs:
        band = max(context.loss_band, context.loss_tolerance) * abs(old)
        excess = abs(new - old) / band if band > 0 else (0.0 if new == old else 2.0)
        if worst is None or excess > worst[0]:
            worst = (excess, index, old, new, band)
        if excess > 1.0:
            findings.fail(
                f"loss {new:.6g} instead of {old:.6g} in update {index}",
                expected=f"{old:.6g} ± {band:.3g}",
                observed=f"{new:.6g}",
            )
    if worst is not None:
        _, index, old, new, band = worst
        findings.passed(
            f"{len(pairs)} losses within the band; farthest in update {index}: {new:.6g} against {old:.6g} "
            f"± {band:.3g}"
        )


def gradient_health(comparison: Comparison, findings: Findings) -> None:
    """Gradients are finite, and their norms follow the baseline's."""
    for index, row in enumerate(comparison.candidate.rows):
        for rank, record in enumerate(row):
            broken = sorted({"grad_norm", "clip", "loss"} & set(record.nonfinite))
            if broken and not _broken_before(comparison, index):
                findings.fail(
                    f"{', '.join(broken)} of rank {rank} in update {index} is not finite",
                    expected="finite gradients",
                    observed="NaN or infinity",
                )
    pairs = comparison.pairs(findings, "the gradient norm", "grad_norm", norm_reading)
    ratios = [(index, norm_gap(old, new)) for index, old, new in pairs]
    if not ratios:
        return
    band = BAND_FACTOR * (comparison.context.grad_norm_band or 0.0)
    typical = statistics.median(ratio for _, ratio in ratios)
    far = [index for index, ratio in ratios if ratio > max(GRAD_NORM_SINGLE, band)]
    if typical > max(GRAD_NORM_TYPICAL, band):
        findings.fail(
            f"gradient norms are typically {typical:.1%} away from the baseline's",
            expected=f"within {max(GRAD_NORM_TYPICAL, band):.1%} in the median update",
            observed=f"{typical:.1%}",
        )
    elif far:
        findings.fail(
            f"the gradient norm is far from the baseline's in {describe_updates(far)}",
            expected=f"within {max(GRAD_NORM_SINGLE, band):.0%} in every update",
            observed=f"{max(ratio for _, ratio in ratios):.1%} away",
        )
    else:
        findings.passed(f"finite; gradient norms typically {typical:.2%} away over {len(ratios)} updates")


def _broken_before(comparison: Comparison, index: int) -> bool:
    """A scaler that probes for overflow gives infinities in the baseline's update too: those pass."""
    row: Row = comparison.baseline.rows[index] if index < len(comparison.baseline.rows) else ()
    return any({"grad_norm", "clip"} & set(record.nonfinite) for record in row)
