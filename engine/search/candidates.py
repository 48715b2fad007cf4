"""The candidates that a decision ranks: all valid ones of a small space, a sample of a large one."""

from __future__ import annotations

import math

import numpy as np

from engine.models.arrays import BoolArray
from engine.schema.trial import Candidate
from engine.search.lattice import Lattice, Rows
from engine.search.screen import normalised, valid
from engine.search.view import SearchInput

RAW_LIMIT = 1_000_000
VALID_LIMIT = 200_000
SAMPLE = 6_000
FLIPS = 3

Levels = tuple[tuple[int, ...], ...]
"""Levels per axis that may be proposed now."""


def candidate_rows(
    search: SearchInput, lattice: Lattice, levels: Levels, centres: Rows, rng: np.random.Generator
) -> Rows:
    """Valid, distinct rows that were neither tried nor are running; suggestions are among them.

    Args:
        search: The decision's input.
        lattice: Axes.
        levels: What the current range allows.
        centres: Rows to look around where the space is too large to enumerate, shape (k, A).
        rng: Source of the sample.

    Returns:
        Shape (n, A), in an order that depends on the input alone.
    """
    if search.members is not None:
        rows = _member_rows(search, lattice, levels)
    elif math.prod(len(axis) for axis in levels) <= RAW_LIMIT:
        rows = _checked(search, lattice, _grid(levels))
        if rows.shape[0] > VALID_LIMIT:
            rows = rows[np.sort(rng.choice(rows.shape[0], VALID_LIMIT, replace=False))]
        rows = _with_suggestions(search, lattice, rows)
    else:
        rows = _with_suggestions(search, lattice, _checked(search, lattice, _sampled(levels, centres, rng)))
    return rows[~np.isin(lattice.keys(rows), lattice.keys(taken_rows(search, lattice)))]


def taken_rows(search: SearchInput, lattice: Lattice) -> Rows:
    """Candidates that were tried, are running, or are the baseline, shape (k, A).

    Infrastructure faults leave theirs free, and so do short runs that worked but measured no speed.
    """
    candidates = [
        *(
            seen.candidate
            for seen in search.observations
            if seen.visible and not (seen.ran and seen.log_speedup is None)
        ),
        *search.pending,
        Candidate(configuration=search.space.baseline()),
    ]
    rows = lattice.rows(candidates)
    return rows if search.members is not None else normalised(search.space, lattice, rows)


def neighbours(lattice: Lattice, levels: Levels, centre: Rows) -> Rows:
    """Rows that differ from `centre`, shape (A,), on exactly one axis; validity is not checked."""
    found = [centre[None, :]]
    for column, allowed in enumerate(levels):
        others = [level for level in allowed if level != centre[column]]
        rows = np.repeat(centre[None, :], len(others), axis=0)
        rows[:, column] = others
        found.append(rows)
    return np.concatenate(found)[1:]


def changes(rows: Rows, reference: Rows) -> BoolArray:
    """Which axes differ from `reference`, shape (n, A)."""
    return np.asarray(rows != reference[None, :], dtype=np.bool_)


def _member_rows(search: SearchInput, lattice: Lattice, levels: Levels) -> Rows:
    rows = lattice.rows([Candidate(configuration=dict(member)) for member in search.members or ()])
    inside = np.ones(rows.shape[0], dtype=np.bool_)
    for column, allowed in enumerate(levels):
        inside &= np.isin(rows[:, column], allowed)
    return _distinct(lattice, rows[inside])


def _with_suggestions(search: SearchInput, lattice: Lattice, rows: Rows) -> Rows:
    """Rows and those suggestions that the space allows, whatever the range that is searched now."""
    suggested = _checked(search, lattice, lattice.rows([each.candidate for each in search.suggestions]))
    for column, axis in enumerate(lattice.axes):
        suggested = suggested[np.isin(suggested[:, column], sorted(axis.allowed))]
    return _distinct(lattice, np.concatenate([rows, suggested])) if suggested.shape[0] else rows


def _checked(search: SearchInput, lattice: Lattice, rows: Rows) -> Rows:
    rows = _distinct(lattice, normalised(search.space, lattice, rows))
    return rows[valid(search.space, lattice, rows)]


def _distinct(lattice: Lattice, rows: Rows) -> Rows:
    _, first = np.unique(lattice.keys(rows), return_index=True)
    return rows[np.sort(first)]


def _grid(levels: Levels) -> Rows:
    sizes = tuple(len(axis) for axis in levels)
    count = math.prod(sizes)
    rows = np.empty((count, len(levels)), dtype=np.int16)
    repeat = count
    for column, allowed in enumerate(levels):
        repeat //= len(allowed)
        run = np.repeat(np.array(allowed, dtype=np.int16), repeat)
        rows[:, column] = np.tile(run, count // run.shape[0])
    return rows


def _sampled(levels: Levels, centres: Rows, rng: np.random.Generator) -> Rows:
    """One to three flips of the centres, and rows drawn level by level."""
    width = len(levels)
    drawn = np.stack([rng.choice(np.array(allowed, dtype=np.int16), SAMPLE) for allowed in levels], axis=1)
    if centres.shape[0] == 0:
        return drawn
    start = np.repeat(centres, SAMPLE // centres.shape[0], axis=0)
    flips = rng.integers(1, FLIPS + 1, start.shape[0])
    order = np.argsort(rng.random((start.shape[0], width)), axis=1)
    fresh = drawn[rng.permutation(SAMPLE)[: start.shape[0]]]
    flipped = np.where(order < flips.reshape(-1, 1), fresh, start)
    return np.concatenate([flipped, drawn])
