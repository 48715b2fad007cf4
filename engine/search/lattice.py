"""Candidates as rows of level numbers: one column per parameter and per patch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from engine.schema.base import Scalar
from engine.schema.trial import Candidate, PatchRef
from engine.search.view import SearchInput

Rows = NDArray[np.int16]
Keys = NDArray[np.uint64]
_HASH_SEED = 20240229


def value_key(value: Scalar) -> str:
    """Identity of a value; True, 1 and "1" are three."""
    return repr(value)


@dataclass(frozen=True)
class Axis:
    """One column.

    Attributes:
        name: Mechanism, or the sha256 of a patch.
        values: Levels; a patch has False and True.
        baseline: Level of the unchanged job.
        initial: Levels that are searched first.
        allowed: Levels that may be proposed at all.
        patch: The patch, for a patch's column.
    """

    name: str
    values: tuple[Scalar, ...]
    baseline: int
    initial: frozenset[int]
    allowed: frozenset[int]
    patch: PatchRef | None = None

    @cached_property
    def levels(self) -> dict[str, int]:
        """Level of a value by `value_key`."""
        return {value_key(value): level for level, value in enumerate(self.values)}


@dataclass(frozen=True)
class Lattice:
    """All axes, parameters first."""

    axes: tuple[Axis, ...]

    @cached_property
    def position(self) -> dict[str, int]:
        """Column of an axis by name."""
        return {axis.name: column for column, axis in enumerate(self.axes)}

    @cached_property
    def baseline(self) -> Rows:
        """The unchanged job, shape (A,)."""
        return np.array([axis.baseline for axis in self.axes], dtype=np.int16)

    def row(self, candidate: Candidate) -> Rows:
        """Levels of a candidate, shape (A,); parameters that it does not name are at their baseline.

        Raises:
            KeyError: A value or patch that the lattice was not built with.
        """
        row = self.baseline.copy()
        for name, value in candidate.configuration.items():
            column = self.position.get(name)
            if column is not None:
                row[column] = self.axes[column].levels[value_key(value)]
        for patch in candidate.patches:
            row[self.position[patch.sha256]] = 1
        return row

    def rows(self, candidates: Sequence[Candidate]) -> Rows:
        """Levels of several candidates, shape (n, A)."""
        if not candidates:
            return np.zeros((0, len(self.axes)), dtype=np.int16)
        return np.stack([self.row(candidate) for candidate in candidates])

    def candidate(self, row: Rows) -> Candidate:
        """The candidate of a row, shape (A,)."""
        configuration = {
            axis.name: axis.values[int(level)]
            for axis, level in zip(self.axes, row, strict=True)
            if axis.patch is None
        }
        patches = tuple(
            axis.patch for axis, level in zip(self.axes, row, strict=True) if axis.patch is not None and level
        )
        return Candidate(configuration=configuration, patches=patches)

    def keys(self, rows: Rows, columns: Sequence[int] | None = None) -> Keys:
        """A 64-bit identity per row, shape (n,), of all or some columns: different rows rarely share one."""
        used = slice(None) if columns is None else list(columns)
        product: Keys = rows[:, used].astype(np.uint64) @ self._multipliers[used]
        return product

    @cached_property
    def _multipliers(self) -> Keys:
        odd = np.random.default_rng(_HASH_SEED).integers(1, 2**62, size=len(self.axes), dtype=np.uint64)
        return np.asarray(2 * odd + np.uint64(1), dtype=np.uint64)

    def label(self, column: int, level: int) -> str:
        """How a change is shown to a person."""
        axis = self.axes[column]
        return f"patch {axis.patch.name}" if axis.patch else f"{axis.name}={axis.values[level]}"


def build_lattice(search: SearchInput) -> Lattice:
    """Axes of the space, widened by every value and patch that was ever seen."""
    baseline = search.space.baseline()
    candidates = [
        *(seen.candidate for seen in search.observations),
        *(suggestion.candidate for suggestion in search.suggestions),
        *search.pending,
    ]
    members = search.members or ()
    axes = []
    for parameter in search.space.parameters:
        name = parameter.mechanism
        seen = [each.configuration[name] for each in candidates if name in each.configuration]
        known = (*parameter.values, *(member[name] for member in members if name in member))
        axes.append(_axis(name, baseline[name], known, parameter.initial, seen))
    return Lattice((*axes, *_patch_axes(search.patches, candidates)))


def _axis(
    name: str, default: Scalar, known: Iterable[Scalar], initial: Iterable[Scalar], seen: Iterable[Scalar]
) -> Axis:
    allowed = list({value_key(value): value for value in (*known, default)}.values())
    extra = {value_key(value): value for value in seen}
    for value in allowed:
        extra.pop(value_key(value), None)
    values = (*allowed, *(extra[key] for key in sorted(extra)))
    level = {value_key(value): index for index, value in enumerate(values)}
    first = {level[value_key(value)] for value in initial if value_key(value) in level}
    start = level[value_key(default)]
    return Axis(name, values, start, frozenset(first | {start}), frozenset(range(len(allowed))))


def _patch_axes(offered: Sequence[PatchRef], candidates: Sequence[Candidate]) -> list[Axis]:
    known = {patch.sha256: patch for candidate in candidates for patch in candidate.patches}
    known |= {patch.sha256: patch for patch in offered}
    usable = {patch.sha256 for patch in offered}
    return [
        Axis(
            name=digest,
            values=(False, True),
            baseline=0,
            initial=frozenset({0, 1}),
            allowed=frozenset({0, 1} if digest in usable else {0}),
            patch=known[digest],
        )
        for digest in sorted(known)
    ]
