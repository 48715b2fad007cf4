"""Expressions over parameters: parse once, evaluate for many configurations."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Callable, Mapping

from engine.schema.base import Scalar
from engine.task.expression_syntax import (
    KEYWORDS,
    Arithmetic,
    Comparison,
    Constant,
    DivisionByZeroError,
    ExpressionError,
    Logic,
    Name,
    Node,
    Token,
    Unary,
    parse_tokens,
    tokenize,
)

_NUMBER = re.compile(r"-?\d+(?P<fraction>\.\d+)?", re.ASCII)
_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def scalar_text(value: Scalar) -> str:
    """A canonical value as it is written on a command line: true, 8, 0.5, selective."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_number(value: Scalar) -> int | float | None:
    """The number that a canonical value stands for: "8" is 8; None for booleans and other texts."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        match = _NUMBER.fullmatch(value)
        return None if match is None else float(value) if match["fraction"] else int(value)
    return value


@dataclasses.dataclass(frozen=True)
class Expression:
    """A parsed expression."""

    text: str
    tokens: tuple[Token, ...]
    root: Node

    @property
    def names(self) -> frozenset[str]:
        """The names that must be known to evaluate it."""
        return frozenset(token.text for token in self.tokens if token.kind == "name") - KEYWORDS

    def evaluate(self, names: Mapping[str, Scalar]) -> Scalar:
        """Compute the value.

        Raises:
            ExpressionError: an unknown name, a division by zero, or operands of the wrong kind.
        """
        return _evaluate(self.root, names)

    def holds(self, names: Mapping[str, Scalar]) -> bool:
        """Compute a condition.

        Raises:
            ExpressionError: as for `evaluate`, or the value is no condition.
        """
        return _condition(_evaluate(self.root, names))

    def with_numbers(self, names: Mapping[str, Scalar]) -> str:
        """The expression with its names replaced by their values: `2 * 4 == 8`."""
        parts, position = [], 0
        for token in self.tokens:
            if token.kind == "name" and token.text in names and token.text not in KEYWORDS:
                value = names[token.text]
                text = repr(value) if isinstance(value, str) else scalar_text(value)
                parts += [self.text[position : token.start], text]
                position = token.start + len(token.text)
        return "".join([*parts, self.text[position:]]).strip()

    def inexact_division(self, names: Mapping[str, Scalar]) -> str | None:
        """The first `//` that leaves a remainder, as `8 // 3`, or None."""
        return _inexact(self.root, names)


def parse(text: str) -> Expression:
    """Parse an expression.

    Raises:
        ExpressionError: the text is not an expression.
    """
    tokens = tokenize(text)
    return Expression(text, tokens, parse_tokens(tokens))


def _evaluate(node: Node, names: Mapping[str, Scalar]) -> Scalar:
    match node:
        case Constant(value):
            return value
        case Name(name):
            if name not in names:
                raise ExpressionError(f"{name!r} is not known")
            return names[name]
        case Unary("not", operand):
            return not _condition(_evaluate(operand, names))
        case Unary(_, operand):
            return -_number(_evaluate(operand, names), "-")
        case Arithmetic(sign, left, right):
            return _compute(sign, _evaluate(left, names), _evaluate(right, names))
        case Comparison(first, rest):
            return _compare_chain(_evaluate(first, names), rest, names)
        case Logic("and", operands):
            return all(_condition(_evaluate(operand, names)) for operand in operands)
        case Logic(_, operands):
            return any(_condition(_evaluate(operand, names)) for operand in operands)


def _compute(sign: str, left: Scalar, right: Scalar) -> int | float:
    a, b = _number(left, sign), _number(right, sign)
    if sign in ("//", "%") and b == 0:
        raise DivisionByZeroError(f"division by zero: {a} {sign} {b}")
    match sign:
        case "+":
            return a + b
        case "-":
            return a - b
        case "*":
            return a * b
        case "//":
            return a // b
    return a % b


def _compare_chain(value: Scalar, rest: tuple[tuple[str, Node], ...], names: Mapping[str, Scalar]) -> bool:
    for sign, node in rest:
        other = _evaluate(node, names)
        if not _compare(sign, value, other):
            return False
        value = other
    return True


def _compare(sign: str, left: Scalar, right: Scalar) -> bool:
    if sign in ("==", "!="):
        return _equal(left, right) == (sign == "==")
    return _COMPARE[sign](_number(left, sign), _number(right, sign))


def _equal(left: Scalar, right: Scalar) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left == right
    if isinstance(left, bool) or isinstance(right, bool):
        if not isinstance(left, bool | str) or not isinstance(right, bool | str):
            raise ExpressionError(
                f"{scalar_text(left)} == {scalar_text(right)} compares a boolean with a number",
                hint="write the parameter's name alone, or `not name`",
            )
        return scalar_text(left) == scalar_text(right)
    return as_number(left) == as_number(right)


def _number(value: Scalar, sign: str) -> int | float:
    number = as_number(value)
    if number is None:
        shown = repr(value) if isinstance(value, str) else scalar_text(value)
        raise ExpressionError(f"{sign!r} needs numbers, not {shown}")
    return number


def _condition(value: Scalar) -> bool:
    if isinstance(value, bool):
        return value
    if value in ("true", "false"):
        return value == "true"
    raise ExpressionError(
        f"{value!r} is not a condition", hint="compare it with something: name == 8, name != 'off'"
    )


def _inexact(node: Node, names: Mapping[str, Scalar]) -> str | None:
    match node:
        case Unary(_, operand):
            return _inexact(operand, names)
        case Arithmetic(sign, left, right):
            a, b = _number(_evaluate(left, names), sign), _number(_evaluate(right, names), sign)
            if sign == "//" and b != 0 and a % b != 0:
                return f"{a} // {b}"
            return _inexact(left, names) or _inexact(right, names)
    return None
