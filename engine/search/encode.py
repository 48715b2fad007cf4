"""Rows of levels → feature vectors relative to the baseline, whose own vector is (1, 0, …, 0).

Columns: the intercept; one per level that is not the baseline's; for sizes also log2 of the ratio to the
baseline, scaled to at most 1; the products of a few named pairs; one per patch. A block of all pairs was
measured not to pay within thirty trials; sizes that were not scaled sent the first trials to the far ends of
their ranges.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from engine.models.arrays import FloatArray
from engine.search.lattice import Axis, Lattice, Rows, value_key
from engine.task.expressions import as_number

INTERACTIONS = (
    ("activation_recompute", "micro_batch_size"),
    ("activation_recompute", "attention_backend"),
    ("attention_backend", "micro_batch_size"),
    ("compile_scope", "attention_backend"),
    ("activation_recompute", "compile_scope"),
    ("dp_shard_stage", "micro_batch_size"),
    ("compute_dtype", "moe_grouped_gemm"),
)
"""Pairs whose joint effect on speed or memory is known to differ from the sum of both."""

SIZE_PAIRS = 10
"""At most so many products of two sizes (parallel degrees, batch sizes) get a column."""

_FEWEST_LEVELS_OF_A_SIZE = 3


@dataclass(frozen=True, eq=False)
class Encoder:
    """Feature columns of a lattice.

    Attributes:
        names: Name of each column, for the report.
        kinds: intercept | level | size | pair, per column.
        tables: Per axis, features of its levels, shape (levels, columns of the axis).
        own: Per axis, its columns.
        pairs: Columns whose product is a further column.
    """

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    tables: tuple[FloatArray, ...]
    own: tuple[tuple[int, ...], ...]
    pairs: tuple[tuple[int, int], ...]

    @cached_property
    def index(self) -> dict[str, int]:
        """Column by name."""
        return {name: column for column, name in enumerate(self.names)}

    def encode(self, rows: Rows) -> FloatArray:
        """Features, shape (n, A) to (n, d); every element is finite."""
        features = np.empty((rows.shape[0], len(self.names)), order="F")
        features[:, 0] = 1.0
        column = 1
        for axis, table in enumerate(self.tables):
            for values in table.T:
                features[:, column] = values[rows[:, axis]]
                column += 1
        for first, second in self.pairs:
            features[:, column] = features[:, first] * features[:, second]
            column += 1
        return features


def build_encoder(lattice: Lattice) -> Encoder:
    """Columns for the axes of a lattice."""
    names, kinds, tables, own = ["intercept"], ["intercept"], [], {}
    for axis in lattice.axes:
        labels, table = _axis_columns(axis)
        own[axis.name] = list(range(len(names), len(names) + len(labels)))
        names += [label for label, _ in labels]
        kinds += [kind for _, kind in labels]
        tables.append(table)
    pairs = _pairs(own, kinds)
    names += [f"{names[first]} × {names[second]}" for first, second in pairs]
    kinds += ["pair"] * len(pairs)
    positions = tuple(tuple(own[axis.name]) for axis in lattice.axes)
    return Encoder(tuple(names), tuple(kinds), tuple(tables), positions, tuple(pairs))


def level_name(axis: Axis, level: int) -> str:
    """Name of the column that is 1 at a level."""
    return f"patch {axis.name}" if axis.patch else f"{axis.name}={value_key(axis.values[level])}"


def sizes(axis: Axis) -> FloatArray | None:
    """log2((value + s) / (baseline + s)) per level, s = 1 where a level is 0; None for what is no size."""
    numbers = [as_number(value) for value in axis.values]
    known = [float(number) for number in numbers if number is not None]
    if axis.patch is not None or len(known) < max(len(numbers), _FEWEST_LEVELS_OF_A_SIZE) or min(known) < 0:
        return None
    shift = 1.0 if min(known) == 0 else 0.0
    return np.array([math.log2((value + shift) / (known[axis.baseline] + shift)) for value in known])


def doublings(size: FloatArray) -> float:
    """Largest |log2 ratio| to the baseline, where the column of a size reaches 1."""
    return max(1.0, float(np.max(np.abs(size))))


def size_name(mechanism: str) -> str:
    """Name of the column of a size."""
    return f"{mechanism}:log2"


def _axis_columns(axis: Axis) -> tuple[list[tuple[str, str]], FloatArray]:
    others = [level for level in range(len(axis.values)) if level != axis.baseline]
    labels = [(level_name(axis, level), "level") for level in others]
    columns = [np.eye(len(axis.values))[:, level] for level in others]
    size = sizes(axis)
    if size is not None:
        labels.append((size_name(axis.name), "size"))
        columns.append(size / doublings(size))
    table = np.stack(columns, axis=1) if columns else np.zeros((len(axis.values), 0))
    return labels, table


def _pairs(own: dict[str, list[int]], kinds: list[str]) -> list[tuple[int, int]]:
    def acting(name: str) -> list[int]:
        size = [column for column in own[name] if kinds[column] == "size"]
        return size or own[name]

    named = [
        (first, second)
        for left, right in INTERACTIONS
        if left in own and right in own
        for first, second in itertools.product(acting(left), acting(right))
    ]
    size_columns = [column for columns in own.values() for column in columns if kinds[column] == "size"]
    products = itertools.islice(itertools.combinations(size_columns, 2), SIZE_PAIRS)
    return list(dict.fromkeys([*named, *products]))
