"""Module-level constants of Python files: the value's characters are exchanged, all others stay."""

from __future__ import annotations

import ast
import warnings
from typing import NamedTuple

from engine.schema.task import Unset
from engine.task.bindings.literal import BindingError, Literal, same
from engine.task.bindings.text_file import TextFile, not_changeable
from engine.task.nearest import did_you_mean

_RULE = "one assignment at module level: NAME = literal"


class _Constant(NamedTuple):
    """The value's position (offsets into the UTF-8 bytes) and the value."""

    start: int
    end: int
    value: Literal


def read(file: TextFile, name: str) -> Literal | Unset:
    """The value of a constant.

    Raises:
        BindingError: no such constant, several assignments, no literal, or no valid Python.
    """
    return _find(file, name).value


def write(file: TextFile, name: str, literal: Literal | Unset) -> str:
    """The file's text with one constant changed.

    Raises:
        BindingError: as for `read`, or the literal is `{ unset = true }`.
    """
    if isinstance(literal, Unset):
        raise BindingError("name", "a Python constant cannot be unset", file=file.name, value=name)
    constant = _find(file, name)
    source = file.text.encode("utf-8")
    new = _spelling(literal, source[constant.start : constant.end].decode("utf-8"))
    text = (source[: constant.start] + new.encode("utf-8") + source[constant.end :]).decode("utf-8")
    if not same(_find(TextFile(file.name, text), name).value, literal):
        raise not_changeable(file.name, name, "the new value would read differently")
    return text


def _find(file: TextFile, name: str) -> _Constant:
    source = file.text.encode("utf-8")
    values = _assigned_values(_parse(file, source), name)
    if len(values) > 1:
        raise BindingError("name", "assigned more than once", file=file.name, value=name, rule=_RULE)
    if not values:
        constants = sorted(_names(_parse(file, source)))
        raise BindingError(
            "name",
            f"{file.name} has no such constant",
            file=file.name,
            value=name,
            rule=_RULE,
            hint=did_you_mean(name, constants),
        )
    value = values[0]
    if value is None:
        raise BindingError("name", "assigned together with others", file=file.name, value=name, rule=_RULE)
    try:
        literal = ast.literal_eval(value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
        raise BindingError("name", "not a literal", file=file.name, value=name, rule=_RULE) from error
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    end_line, end_column = value.end_lineno or value.lineno, value.end_col_offset or 0
    return _Constant(starts[value.lineno - 1] + value.col_offset, starts[end_line - 1] + end_column, literal)


def _parse(file: TextFile, source: bytes) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise BindingError("python", f"not valid Python: {error}", value=file.name) from error


def _assigned_values(module: ast.Module, name: str) -> list[ast.expr | None]:
    """The values assigned to a name at module level, one per assignment; None where it is not alone."""
    found: list[ast.expr | None] = []
    for statement in module.body:
        if isinstance(statement, ast.Assign):
            if name in _targets(statement):
                alone = len(statement.targets) == 1 and isinstance(statement.targets[0], ast.Name)
                found.append(statement.value if alone else None)
        elif isinstance(statement, ast.AnnAssign | ast.AugAssign) and _is_name(statement.target, name):
            found.append(statement.value if isinstance(statement, ast.AnnAssign) else None)
    return found


def _is_name(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _targets(statement: ast.Assign) -> set[str]:
    return {
        node.id for target in statement.targets for node in ast.walk(target) if isinstance(node, ast.Name)
    }


def _names(module: ast.Module) -> set[str]:
    assigned = [_targets(statement) for statement in module.body if isinstance(statement, ast.Assign)]
    annotated = {
        statement.target.id
        for statement in module.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    return annotated.union(*assigned)


def _spelling(literal: Literal, old: str) -> str:
    text = repr(literal)
    if isinstance(literal, str) and old[:1] == '"' and text[:1] == "'" and not set(literal) & {'"', "\\"}:
        return f'"{text[1:-1]}"'
    return text
