"""What each change is worth, with intervals: the table that the report and the screen show."""

from __future__ import annotations

import numpy as np

from engine.schema.base import Record, Scalar
from engine.search.models import FittedModels

_LEVEL = 0.9


class EffectEstimate(Record):
    """One change of the baseline alone.

    low, high: central 90 % interval of the log speed-up. memory_ratio: predicted peak over the baseline's.
    trials: measured candidates that held the change; 0 = the numbers are beliefs only.
    """

    mechanism: str
    value: Scalar
    label: str
    log_speedup: float
    low: float
    high: float
    memory_ratio: float | None
    trials: int


def effect_table(models: FittedModels) -> tuple[EffectEstimate, ...]:
    """Estimates of every single change, largest first."""
    lattice, encoder = models.lattice, models.encoder
    places = [
        (column, level)
        for column, axis in enumerate(lattice.axes)
        for level in range(len(axis.values))
        if level != axis.baseline
    ]
    if not places:
        return ()
    rows = np.repeat(lattice.baseline[None, :], len(places), axis=0)
    for index, (column, level) in enumerate(places):
        rows[index, column] = level
    contrast = encoder.encode(rows) - encoder.encode(lattice.baseline[None, :])
    gains = models.speed.predict(contrast)
    low, high = gains.interval(_LEVEL)
    ratios = None if models.memory is None else np.exp(models.memory.posterior.predict(contrast)[0])
    table = [
        EffectEstimate(
            mechanism=lattice.axes[column].name,
            value=lattice.axes[column].values[level],
            label=lattice.label(column, level),
            log_speedup=float(gains.mean[index]),
            low=float(low[index]),
            high=float(high[index]),
            memory_ratio=None if ratios is None else float(ratios[index]),
            trials=sum(int(observed.row[column]) == level for observed in models.observed),
        )
        for index, (column, level) in enumerate(places)
    ]
    return tuple(sorted(table, key=lambda each: (-each.log_speedup, each.label)))
