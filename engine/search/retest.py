"""Short runs that find the minimal set behind a conflict, where what it blocks is worth them.

A test is a part of the failed candidate's changes. The best one splits the blame in half: whatever it does,
half of the suspects are gone. A single change that failed alone gets one more chance in another context,
for it may only have missed a partner.

Source: delta debugging, Zeller & Hildebrandt (2002), IEEE TSE 28.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from engine.models.acquisition import choose
from engine.models.arrays import FloatArray
from engine.schema.trial import TrialKind
from engine.search.acquisition import EXPLORING_FLOOR, Scored
from engine.search.candidates import taken_rows
from engine.search.exclusion import Cause, Exclusions, Suspect, blame_of, changed
from engine.search.lattice import Lattice, Rows
from engine.search.models import FittedModels
from engine.search.screen import normalised, valid
from engine.search.view import SearchInput

_RETESTS_PER_TRIAL = 0.2
_BLOCKING_BLAME = 0.3
_GAIN_FACTOR = math.log(1.5)
_REPEATED_FACTOR = math.log(0.8)
_SECOND_CHANCE_FACTOR = math.log(0.5)
_SMALLEST_SPLIT = 0.05
_LAST_RETEST = 0.9
_FAILURES_FOR_GOOD = 3


@dataclass(frozen=True, eq=False)
class Retest:
    """A short run and why it pays."""

    row: Rows
    reason: str


def next_retest(
    search: SearchInput, models: FittedModels, exclusions: Exclusions, scored: Scored
) -> Retest | None:
    """The short run that is worth more than the best open trial; None when none is."""
    ran = sum(seen.trial_kind is TrialKind.RETEST for seen in search.observations if seen.visible)
    allowed = 1 + _RETESTS_PER_TRIAL * len(search.searched)
    # One at a time: the next one depends on what this one tells.
    too_late = search.budget.progress > _LAST_RETEST
    if not exclusions.causes or ran >= allowed or too_late or search.is_retesting:
        return None
    open_best = float(np.max(scored.score, initial=-math.inf))
    for cause in exclusions.causes:
        found = (
            _split(search, models, exclusions, scored, cause, open_best)
            if cause.confirmed is None
            else _second_chance(search, exclusions, scored, cause, open_best)
        )
        if found is not None:
            return found
    return None


def _split(
    search: SearchInput,
    models: FittedModels,
    exclusions: Exclusions,
    scored: Scored,
    cause: Cause,
    open_best: float,
) -> Retest | None:
    blame = blame_of(cause, scored.rows)
    blocked = (blame >= _BLOCKING_BLAME) & exclusions.allowed(scored.rows)
    value = float(np.max(scored.potential[blocked], initial=-math.inf))
    bar = _REPEATED_FACTOR if len(cause.trials) > 1 else _GAIN_FACTOR
    if len(cause.blame) < 2 or not value > open_best + bar:
        return None
    row = _best_test(search, models, exclusions, cause)
    if row is None:
        return None
    names = ", ".join(models.lattice.label(*item) for item in sorted(_top_suspect(cause)))
    return Retest(row, f"A short run to find out whether {names} caused the failure of {cause.trials[0]}.")


def _second_chance(
    search: SearchInput, exclusions: Exclusions, scored: Scored, cause: Cause, open_best: float
) -> Retest | None:
    """One run of a lone excluded change beside others, if that would rival the best open trial."""
    if cause.confirmed is None or len(cause.confirmed) != 1 or search.members is not None:
        return None
    failed = {row for each in exclusions.causes for row in each.rows if cause.confirmed <= row}
    if len(failed) >= _FAILURES_FOR_GOOD:
        return None
    (column, level), *_ = cause.confirmed
    chance = np.asarray(scored.rows[:, column] == level, dtype=np.float64)
    for each in exclusions.causes:
        chance *= 1.0 - blame_of(each, scored.rows)
    with np.errstate(divide="ignore"):
        value = scored.potential + np.log(chance)
    index = choose(value)
    if index is None or not scored.potential[index] > open_best + _SECOND_CHANCE_FACTOR:
        return None
    return Retest(
        scored.rows[index], f"A short run of what failed alone in {cause.trials[0]}, beside others."
    )


def _best_test(
    search: SearchInput, models: FittedModels, exclusions: Exclusions, cause: Cause
) -> Rows | None:
    lattice = models.lattice
    rows = np.stack(list(_parts(lattice, cause.rows[0])))
    known = lattice.keys(normalised(search.space, lattice, rows))
    usable = valid(search.space, lattice, rows) & exclusions.allowed(rows)
    usable &= ~np.isin(known, lattice.keys(taken_rows(search, lattice)))
    usable &= known == lattice.keys(rows)
    usable &= models.p_fits(models.encoder.encode(rows)) >= EXPLORING_FLOOR
    if search.members is not None:
        usable[:] = False
    held: FloatArray = blame_of(cause, rows)
    balance = np.where(usable, np.minimum(held, 1.0 - held), -1.0)
    best = int(np.argmax(balance))
    return rows[best] if balance[best] >= _SMALLEST_SPLIT else None


def _parts(lattice: Lattice, failed: Suspect) -> Iterable[Rows]:
    """The baseline with few of the changes, and the failure without few of them; fewest changes first."""
    items = changed(lattice, failed)
    chosen = {
        frozenset(part)
        for size in (1, 2, 3)
        for few in itertools.combinations(items, size)
        for part in (few, set(items) - set(few))
        if part and len(part) < len(items)
    }
    whole = frozenset(items)
    for part in sorted(chosen, key=lambda part: (len(part), sorted(part))) or [whole]:
        row = lattice.baseline.copy()
        for column, level in part:
            row[column] = level
        yield row


def _top_suspect(cause: Cause) -> Suspect:
    return max(cause.blame, key=lambda suspect: (cause.blame[suspect], sorted(suspect)))
