"""How far numerically equivalent runs of the unchanged job lie apart; every band is a relative difference."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from engine.schema.evidence import RunEvidence, UpdateRecord
from engine.schema.model_state import ModelState, end_norm_gap, end_state, start_state
from engine.schema.run_view import RunView, norm_gap, norm_reading, update_loss

Value = TypeVar("Value")


def loss_band(runs: Iterable[RunEvidence]) -> float:
    """Widest relative deviation of the loss between any two runs at the same update.

    Returns:
        max |a - b| / max(|a|, |b|); 0 where fewer than two runs show a loss.
    """
    return _widest_gap(runs, update_loss, _loss_gap) or 0.0


def grad_norm_band(runs: Iterable[RunEvidence]) -> float | None:
    """Widest relative deviation of the gradient norm between any two runs at the same update.

    Returns:
        None where no two runs show the norm of one update.
    """
    return _widest_gap(runs, norm_reading, norm_gap)


def end_state_band(runs: Iterable[RunEvidence]) -> float | None:
    """Widest relative deviation of a parameter's norm at the end of any two runs of equally many updates.

    Returns:
        None where no two such runs show a parameter that can be compared.
    """
    ends = [(len(view.rows), *ends) for view in map(RunView, runs) if (ends := _both_ends(view)) is not None]
    gaps = [
        gap
        for (one, before, old), (other, _, new) in itertools.permutations(ends, 2)
        if one == other
        for name in old.parameters.keys() & new.parameters.keys()
        if (gap := end_norm_gap(before.parameters.get(name), old.parameters[name], new.parameters[name]))
        is not None
    ]
    return max(gaps, default=None)


def _both_ends(view: RunView) -> tuple[ModelState, ModelState] | None:
    start = start_state(view)
    if isinstance(start, str):
        return None
    end = end_state(view, start)
    return None if isinstance(end, str) else (start, end)


def _loss_gap(one: float, other: float) -> float:
    scale = max(abs(one), abs(other))
    return abs(one - other) / scale if scale > 0 else 0.0


def _widest_gap(
    runs: Iterable[RunEvidence],
    read: Callable[[Sequence[UpdateRecord]], Value | None],
    gap: Callable[[Value, Value], float],
) -> float | None:
    """Largest gap over ordered pairs of runs and the updates that both show."""
    traces = [[read(row) for row in RunView(run).rows] for run in runs]
    gaps = [
        gap(a, b)
        for one, other in itertools.permutations(traces, 2)
        for a, b in zip(one, other, strict=False)
        if a is not None and b is not None
    ]
    return max(gaps, default=None)
