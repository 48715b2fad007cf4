"""The range that is searched, and when it widens: after two full trials without a valid improvement."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.models.arrays import BoolArray, FloatArray
from engine.search.candidates import Levels, changes
from engine.search.incumbents import improvement_threshold
from engine.search.lattice import Lattice, Rows
from engine.search.models import FittedModels
from engine.search.view import SearchInput

PATIENCE = 2
WIDENED_PER_STEP = 3
HIGH_IMPACT = 5
JOINT_CHANGES = 2


@dataclass(frozen=True)
class Escalation:
    """How far the search has escalated.

    Attributes:
        steps: How often two full valid trials in a row brought nothing.
        due: Whether the next proposal must change several high-impact parameters at once.
    """

    steps: int
    due: bool


def escalation(search: SearchInput, starts: int) -> Escalation:
    """Replay the trials; the first `starts` ones explore and do not count as attempts."""
    threshold = improvement_threshold(search)
    best, streak, steps, due = 0.0, 0, 0, False
    for index, seen in enumerate(search.searched):
        if not seen.ran or seen.truncated or seen.log_speedup is None:
            continue
        improved = seen.log_speedup - best > threshold
        best = max(best, seen.log_speedup)
        due = False
        if index < starts:
            continue
        streak = 0 if improved else streak + 1
        if streak == PATIENCE:
            streak, steps, due = 0, steps + 1, True
    return Escalation(steps, due)


def axis_impact(models: FittedModels) -> FloatArray:
    """Largest plausible effect of each axis: |mean| + scale over its levels, shape (A,)."""
    lattice = models.lattice
    impact = np.zeros(len(lattice.axes))
    origin = models.encoder.encode(lattice.baseline[None, :])
    for column, axis in enumerate(lattice.axes):
        rows = np.repeat(lattice.baseline[None, :], len(axis.values), axis=0)
        rows[:, column] = np.arange(len(axis.values))
        effect = models.speed.predict(models.encoder.encode(rows) - origin)
        impact[column] = float(np.max(np.abs(effect.mean) + effect.scale))
    return impact


def search_levels(lattice: Lattice, impact: FloatArray, steps: int) -> Levels:
    """Levels that may be proposed: the first ones; after each escalation, all of a few more strong axes."""
    hidden = [column for column, axis in enumerate(lattice.axes) if not axis.allowed <= axis.initial]
    hidden.sort(key=lambda column: (-impact[column], column))
    opened = set(hidden[: WIDENED_PER_STEP * steps])
    return tuple(
        tuple(sorted(axis.allowed if column in opened else axis.initial & axis.allowed))
        for column, axis in enumerate(lattice.axes)
    )


def all_levels(lattice: Lattice) -> Levels:
    """Every level that may be proposed at all."""
    return tuple(tuple(sorted(axis.allowed)) for axis in lattice.axes)


def joint_changes(rows: Rows, incumbent: Rows, impact: FloatArray) -> BoolArray:
    """Rows that differ from the incumbent on several of the axes with the largest impact, shape (n,)."""
    strongest = np.argsort(-impact, kind="stable")[:HIGH_IMPACT]
    count = changes(rows, incumbent)[:, strongest].sum(axis=1)
    return np.asarray(count >= min(JOINT_CHANGES, strongest.shape[0]), dtype=np.bool_)
