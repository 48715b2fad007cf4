"""Expressions of the task file: they parse, use known names, do not go in circles, and fit the values."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence

from engine.schema.base import Scalar
from engine.task.expression_syntax import DivisionByZeroError, ExpressionError
from engine.task.expressions import Expression, parse
from engine.task.global_batch import HOW_TO_PROVIDE
from engine.task.nearest import did_you_mean
from engine.task.place import Place

CONSTANTS = ("world_size", "nodes", "gpus_per_node", "global_batch")


def read_expression(text: str, place: Place, mechanisms: Iterable[str], extra: Iterable[str]) -> Expression:
    """Parse an expression and check its names.

    Args:
        text: The expression as written.
        place: Its place in the task file.
        mechanisms: The names of parameters.
        extra: The constants that are known.

    Raises:
        TaskFileError: it does not parse, or uses a name that is not known.
    """
    try:
        expression = parse(text)
    except ExpressionError as error:
        raise place.error(error.message, value=text, rule=error.rule, hint=error.hint) from error
    known = [*mechanisms, *extra]
    for name in sorted(expression.names - set(known)):
        if name == "global_batch":
            raise place.error(
                "global_batch is not known: no parameter, bound file or flag has it",
                value=text,
                rule="a parameter, or one value of this name in a bound file or the command",
                hint=HOW_TO_PROVIDE,
            )
        is_boolean = name in ("true", "false", "True", "False")
        raise place.error(
            f"unknown name {name!r}",
            value=text,
            rule="a mechanism of [[parameters]] or one of " + ", ".join(CONSTANTS),
            hint="write the parameter alone, or `not` before it" if is_boolean else did_you_mean(name, known),
        )
    return expression


def evaluation_order(uses: Mapping[str, frozenset[str]], places: Mapping[str, Place]) -> tuple[str, ...]:
    """The mechanisms, each after those that its expressions use.

    Raises:
        TaskFileError: expressions that use each other in a circle.
    """
    graph = {mechanism: sorted(names & uses.keys()) for mechanism, names in uses.items()}
    try:
        return tuple(graphlib.TopologicalSorter(graph).static_order())
    except graphlib.CycleError as error:
        circle: Sequence[str] = error.args[1]
        raise places[circle[0]].error(
            "its expressions go in a circle: " + " -> ".join(reversed(circle)),
            value=circle[0],
            rule="`when` and `derived` use no parameter that depends on this one",
        ) from error


def check_kinds(
    expression: Expression,
    *,
    is_condition: bool,
    baseline: Mapping[str, Scalar],
    values: Mapping[str, Sequence[Scalar]],
    place: Place,
) -> None:
    """Evaluate at the baseline and with each value of each name: a wrong kind shows before a trial runs.

    Raises:
        TaskFileError: operands of a wrong kind, or a condition that is none.
    """
    cases = [{}, *({name: value} for name in sorted(expression.names) for value in values.get(name, ()))]
    for case in cases:
        names = {**baseline, **case}
        if not expression.names <= names.keys():
            continue
        try:
            expression.holds(names) if is_condition else expression.evaluate(names)
        except DivisionByZeroError:
            continue
        except ExpressionError as error:
            raise place.error(
                f"{expression.with_numbers(names)}: {error.message}",
                value=expression.text,
                rule="a condition" if is_condition else "a value",
                hint=error.hint,
            ) from error
