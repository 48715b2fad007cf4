"""Which combinations cannot work: hypotheses, what refutes them, and what they exclude.

A failure that is not about memory is blamed on one small set of settings that it holds: one change, two,
three, or a change that needs another setting than the baseline's. Every candidate that ran refutes all sets
that it holds. What is left shares the blame by size: small sets are likelier. Failures with the same
signature and a common set share one cause. A set is excluded only when it is confirmed: a single change of
the baseline that fails, or nearly all of the blame on one set. Anything else lowers the chance of the
candidates that hold it.

Source: delta debugging, Zeller & Hildebrandt (2002), IEEE TSE 28, with weights instead of a fixed order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from engine.models.arrays import BoolArray, FloatArray
from engine.schema.trial import FailureKind, OutcomeKind
from engine.search.lattice import Lattice, Rows
from engine.search.memory_fit import tells_memory, usable_memory
from engine.search.view import Observation, SearchInput

Item = tuple[int, int]
"""Axis and level."""
Suspect = frozenset[Item]

_CONFIRMED = 0.95
_WEIGHT = {1: 1.0, 2: 0.15, 3: 0.02}
_BASELINE_PARTNER = 0.05
_IMPLICATED = 30.0
_LARGEST_DIFFERENCE = 14
_KEPT = 60
_SMALLEST_CHANCE = 0.02


@dataclass(frozen=True)
class Cause:
    """One unknown reason behind one or more failures.

    Attributes:
        trials: Names of the failed trials.
        rows: Their levels.
        blame: Share of the blame per suspect, summing to 1; empty when every small set is refuted.
        confirmed: The set that is excluded, where it is certain enough.
        implicated: Searched mechanisms that the error texts name.
    """

    trials: tuple[str, ...]
    rows: tuple[Suspect, ...]
    blame: dict[Suspect, float]
    confirmed: Suspect | None
    implicated: frozenset[str]


@dataclass(frozen=True)
class Exclusions:
    """All causes of a study."""

    causes: tuple[Cause, ...]

    @property
    def confirmed(self) -> tuple[Suspect, ...]:
        """Excluded sets, each once."""
        return tuple(dict.fromkeys(cause.confirmed for cause in self.causes if cause.confirmed is not None))

    def allowed(self, rows: Rows) -> BoolArray:
        """Rows that hold no excluded set, shape (n,)."""
        free = np.ones(rows.shape[0], dtype=np.bool_)
        for suspect in self.confirmed:
            free &= ~_holds(rows, suspect)
        return free

    def explains_all(self, rows: Rows) -> bool:
        """Whether one excluded set is in every row; where each has another, something else breaks them."""
        return any(bool(np.all(_holds(rows, suspect))) for suspect in self.confirmed)

    def p_compatible(self, rows: Rows) -> FloatArray:
        """P(no conflict), shape (n,): exactly 0 for excluded sets only."""
        chance = np.ones(rows.shape[0])
        for cause in self.causes:
            if cause.confirmed is None:
                chance *= 1.0 - blame_of(cause, rows)
        return np.where(self.allowed(rows), np.maximum(chance, _SMALLEST_CHANCE), 0.0)


def find_exclusions(search: SearchInput, lattice: Lattice) -> Exclusions:
    """Weigh all suspects against everything that ran.

    Args:
        search: The decision's input.
        lattice: Axes.

    Returns:
        One cause per group of failures, in a canonical order.
    """
    usable = usable_memory(search)
    seen = sorted((each for each in search.observations if each.visible), key=lambda each: each.trial_id)
    # A run that exhausted the memory got past every check of its settings.
    started = [each for each in seen if each.ran or tells_memory(each, usable)]
    successes = {items(lattice.row(each.candidate)) for each in started}
    successes.add(items(lattice.baseline))
    ordered = sorted(successes, key=sorted)
    failures = [each for each in seen if is_conflict(each, usable)]
    causes = [_cause(lattice, group, ordered) for group in _groups(lattice, failures, ordered)]
    certain = [cause.confirmed for cause in causes if cause.confirmed is not None]
    return Exclusions(tuple(cause for cause in causes if not _explained(lattice, cause, certain)))


def is_conflict(seen: Observation, usable: float | None) -> bool:
    """Whether a trial failed for a reason that its settings, not the size of the memory, must explain."""
    if not seen.visible or tells_memory(seen, usable):
        return False
    return seen.kind in (OutcomeKind.REJECTED, OutcomeKind.FAILED) and seen.failure is not FailureKind.SLOW


def items(row: Rows) -> Suspect:
    """All settings of a row as a set."""
    return frozenset((column, int(level)) for column, level in enumerate(row))


def changed(lattice: Lattice, settings: Suspect) -> list[Item]:
    """The settings that are not the baseline's, in axis order."""
    return sorted((column, level) for column, level in settings if level != lattice.axes[column].baseline)


def blame_of(cause: Cause, rows: Rows) -> FloatArray:
    """Share of a cause's blame that each row holds, shape (n,)."""
    total = np.zeros(rows.shape[0])
    for suspect, share in cause.blame.items():
        total += share * _holds(rows, suspect)
    return np.minimum(total, 1.0)


def _holds(rows: Rows, suspect: Suspect) -> BoolArray:
    held = np.ones(rows.shape[0], dtype=np.bool_)
    for column, level in suspect:
        held &= rows[:, column] == level
    return held


def _groups(
    lattice: Lattice, failures: Sequence[Observation], successes: Sequence[Suspect]
) -> list[list[Observation]]:
    """Failures by signature, as long as one small set can explain all of a group."""
    groups: list[list[Observation]] = []
    for failure in failures:
        for group in groups:
            if failure.signature is not None and group[0].signature == failure.signature:
                joined = [*group, failure]
                if _suspects(lattice, joined, successes):
                    group.append(failure)
                    break
        else:
            groups.append([failure])
    return groups


def _cause(lattice: Lattice, group: Sequence[Observation], successes: Sequence[Suspect]) -> Cause:
    rows = tuple(items(lattice.row(each.candidate)) for each in group)
    weights = _suspects(lattice, group, successes)
    top = sorted(weights.items(), key=lambda pair: (-pair[1], sorted(pair[0])))[:_KEPT]
    total = sum(weight for _, weight in top)
    blame = {suspect: weight / total for suspect, weight in top}
    return Cause(
        trials=tuple(each.trial_id for each in group),
        rows=rows,
        blame=blame,
        confirmed=_confirmed(lattice, rows, blame),
        implicated=_implicated(lattice, group),
    )


def _explained(lattice: Lattice, cause: Cause, certain: Sequence[Suspect]) -> bool:
    """Whether confirmed sets explain every failure of an open cause, and what its error text names too."""

    def covers(suspect: Suspect, row: Suspect) -> bool:
        names = {lattice.axes[column].name for column, _ in suspect}
        return suspect <= row and cause.implicated <= names

    if cause.confirmed is not None:
        return False
    return all(any(covers(suspect, row) for suspect in certain) for row in cause.rows)


def _confirmed(lattice: Lattice, rows: Sequence[Suspect], blame: dict[Suspect, float]) -> Suspect | None:
    for row in rows:
        alone = frozenset(changed(lattice, row))
        if len(alone) == 1 and alone in blame:
            return alone
    best = max(blame, key=lambda suspect: blame[suspect], default=None)
    if best is None or blame[best] < _CONFIRMED:
        return None
    # Two failures may share a signature by chance, and then any one setting that both hold by chance.
    return best if len(best) > 1 or len(rows) != 2 else None


def _suspects(
    lattice: Lattice, group: Sequence[Observation], successes: Sequence[Suspect]
) -> dict[Suspect, float]:
    """Prior weight of every small set that all failures of a group hold and no success holds."""
    rows = [items(lattice.row(each.candidate)) for each in group]
    common = frozenset.intersection(*rows)
    differing = [common - success for success in successes]
    if not all(differing):
        return {}
    new = changed(lattice, common)
    implicated = _implicated(lattice, group)
    return {
        suspect: weight * _hint(lattice, suspect, implicated)
        for suspect, weight in _small_sets(new, sorted(common - set(new)))
        if all(suspect & difference for difference in differing)
    }


def _small_sets(new: Sequence[Item], old: Sequence[Item]) -> Iterable[tuple[Suspect, float]]:
    for size, weight in _WEIGHT.items():
        if size < 3 or len(new) <= _LARGEST_DIFFERENCE:
            for combination in itertools.combinations(new, size):
                yield frozenset(combination), weight
    for pair in itertools.product(new, old):
        yield frozenset(pair), _BASELINE_PARTNER


def _implicated(lattice: Lattice, group: Sequence[Observation]) -> frozenset[str]:
    return frozenset(name for each in group for name in each.implicated if name in lattice.position)


def _hint(lattice: Lattice, suspect: Suspect, implicated: frozenset[str]) -> float:
    """The error text names mechanisms: sets of just those are likelier, sets without any less likely."""
    names = {lattice.axes[column].name for column, _ in suspect}
    if not implicated:
        return 1.0
    if names == implicated:
        return _IMPLICATED
    return 1.0 if names & implicated else 1.0 / _IMPLICATED
