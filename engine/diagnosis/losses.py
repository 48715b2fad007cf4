"""How far the losses of numerically equivalent runs of the unchanged job lie apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from engine.schema.evidence import RunEvidence


def loss_trajectory(evidence: RunEvidence) -> dict[int, float]:
    """Loss of each update: mean over the ranks and micro-batches that saw a finite one."""
    collected: dict[int, list[float]] = {}
    for rank in evidence.ranks:
        for update in rank.updates:
            if update.loss and "loss" not in update.nonfinite:
                collected.setdefault(update.index, []).extend(update.loss)
    return {index: sum(values) / len(values) for index, values in sorted(collected.items())}


def loss_band(runs: Iterable[RunEvidence]) -> float:
    """Largest relative deviation of the loss between any two runs at the same update.

    Returns:
        max |a - b| / max(|a|, |b|); 0 where fewer than two runs show a loss.
    """
    return _widest([loss_trajectory(run) for run in runs])


def _widest(trajectories: Sequence[dict[int, float]]) -> float:
    widest = 0.0
    for one, other in itertools.combinations(trajectories, 2):
        for index in one.keys() & other.keys():
            a, b = one[index], other[index]
            scale = max(abs(a), abs(b))
            if scale > 0:
                widest = max(widest, abs(a - b) / scale)
    return widest
