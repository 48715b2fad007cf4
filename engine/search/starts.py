"""The first trials: the best of history, the advisor's choice, a few random candidates that should fit."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.search.acquisition import Scored
from engine.search.lattice import Lattice
from engine.search.view import SearchInput, Suggestion

RANDOM_STARTS = 3
_TRIALS_PER_RANDOM_START = 6


@dataclass(frozen=True)
class Start:
    """A chosen start: row of the scored candidates, where it comes from, why."""

    index: int
    origin: str
    reason: str


def start_plan(search: SearchInput) -> tuple[str, ...]:
    """Sources of the starts in order, fixed by what was known before the first trial."""
    plan = []
    if _suggestion(search, "history") is not None:
        plan.append("history")
    if _suggestion(search, "advisor") is not None or any(
        effect.source == "advisor" for effect in search.effects
    ):
        plan.append("advisor")
    trials = search.budget.trials
    few = RANDOM_STARTS if trials is None else min(RANDOM_STARTS, max(1, trials // _TRIALS_PER_RANDOM_START))
    return (*plan, *["random"] * few)


def next_start(
    search: SearchInput, lattice: Lattice, scored: Scored, rng: np.random.Generator
) -> Start | None:
    """The start that is due; None when all are done or no candidate may be run.

    Args:
        search: The decision's input.
        lattice: Axes.
        scored: Untried candidates.
        rng: Source of the random starts.
    """
    plan = start_plan(search)
    done = len(search.searched) + len(search.pending)
    if done >= len(plan) or not np.any(scored.eligible):
        return None
    source = plan[done]
    if source in ("history", "advisor"):
        suggestion = _suggestion(search, source)
        index = None if suggestion is None else _position(lattice, scored, suggestion)
        if suggestion is not None and index is not None:
            return Start(index, f"start:{source}", suggestion.reason)
    if source == "advisor":
        index = int(np.argmax(np.where(scored.eligible, scored.belief.mean, -np.inf)))
        return Start(index, "start:advisor", "The combination that the advisor expects the most of.")
    index = int(rng.choice(np.flatnonzero(scored.eligible)))
    return Start(
        index, "start:random", "A random valid candidate that should fit; it shows many effects at once."
    )


def _suggestion(search: SearchInput, source: str) -> Suggestion | None:
    return next((each for each in search.suggestions if each.source == source), None)


def _position(lattice: Lattice, scored: Scored, suggestion: Suggestion) -> int | None:
    key = lattice.keys(lattice.row(suggestion.candidate)[None, :])[0]
    found = np.flatnonzero((lattice.keys(scored.rows) == key) & scored.eligible)
    return int(found[0]) if found.size else None
