"""Requirements and normalisation of many rows at once.

The parameter space answers for one configuration at a time. Its expressions read few parameters, so each
distinct combination of just those is asked once and the answer is spread over all rows that share it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from engine.errors import UsageError
from engine.models.arrays import BoolArray
from engine.schema.base import Scalar
from engine.search.lattice import Lattice, Rows, value_key
from engine.task.expressions import Expression
from engine.task.space import ParameterSpace


def valid(space: ParameterSpace, lattice: Lattice, rows: Rows) -> BoolArray:
    """Rows that keep every requirement, shape (n,)."""
    expressions = [*space.requirements, *(entry.expression for entry in space.derived)]
    columns = _columns(lattice, _reads(space, expressions))
    keeps = _by_combination(lattice, rows, columns, lambda asked: int(not space.violations(asked)))
    return keeps.astype(np.bool_)


def normalised(space: ParameterSpace, lattice: Lattice, rows: Rows) -> Rows:
    """Rows with every parameter that has no effect at its default, shape (n, A)."""
    result = rows.copy()
    for parameter in space.parameters:
        if parameter.when is None:
            continue
        name, column = parameter.mechanism, lattice.position[parameter.mechanism]
        columns = _columns(lattice, {name, *_reads(space, [parameter.when])})

        def level(asked: dict[str, Scalar], name: str = name, column: int = column) -> int:
            levels = lattice.axes[column].levels
            try:
                return levels[value_key(space.normalise(asked)[name])]
            except UsageError:  # a value that the task file no longer lists: such a row is only compared
                return levels[value_key(asked[name])]

        result[:, column] = _by_combination(lattice, rows, columns, level)
    return result


def _reads(space: ParameterSpace, expressions: Iterable[Expression]) -> set[str]:
    """Every name that decides the expressions, through derived values and conditions too."""
    behind: dict[str, list[Expression]] = {}
    for parameter in space.parameters:
        behind[parameter.mechanism] = [parameter.when] if parameter.when else []
    for entry in space.derived:
        behind[entry.mechanism] = [entry.expression, *([entry.when] if entry.when else [])]
    open_names = {name for expression in expressions for name in expression.names}
    found: set[str] = set()
    while open_names:
        name = open_names.pop()
        found.add(name)
        open_names |= {each for expression in behind.get(name, []) for each in expression.names} - found
    return found


def _columns(lattice: Lattice, names: Iterable[str]) -> list[int]:
    return sorted(lattice.position[name] for name in names if name in lattice.position)


def _by_combination(
    lattice: Lattice, rows: Rows, columns: Sequence[int], ask: Callable[[dict[str, Scalar]], int]
) -> Rows:
    """Ask once per distinct combination of `columns`; everything else is at its baseline. Shape (n,)."""
    _, first, inverse = np.unique(lattice.keys(rows, columns), return_index=True, return_inverse=True)
    answers = np.zeros(first.shape[0], dtype=np.int16)
    for position, index in enumerate(first):
        row = lattice.baseline.copy()
        row[list(columns)] = rows[index, list(columns)]
        answers[position] = ask(lattice.candidate(row).configuration)
    return answers[inverse]
