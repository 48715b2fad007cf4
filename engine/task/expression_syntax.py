"""The grammar of expressions: integers, strings, names, + - * // %, comparisons, and / or / not.

Precedence, loosest first, as in Python: or, and, not, comparison (chains), + -, * // %, unary minus.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Literal

from engine.errors import UsageError

MAX_LENGTH = 1000
MAX_DEPTH = 50
MAX_WORDS = 300
RULE = "integers, 'strings', names, + - * // %, == != < <= > >=, and / or / not, parentheses"
KEYWORDS = frozenset({"and", "or", "not"})
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+)(?![\w.])|(?P<string>'[^'\\]*'|\"[^\"\\]*\")|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<operator>//|==|!=|<=|>=|[-+*%<>()]))",
    re.ASCII,
)
_COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})


class ExpressionError(UsageError):
    """An expression does not parse, or cannot be computed for the values at hand."""

    kind = "expression"


class DivisionByZeroError(ExpressionError):
    """A `//` or `%` by zero: it depends on the values, the expression itself may be right."""


@dataclasses.dataclass(frozen=True)
class Token:
    """A word of an expression and where it stands (offset in characters)."""

    kind: Literal["number", "string", "name", "operator", "end"]
    text: str
    start: int


@dataclasses.dataclass(frozen=True)
class Constant:
    """A literal integer or string."""

    value: int | str


@dataclasses.dataclass(frozen=True)
class Name:
    """A parameter or a constant of the task."""

    name: str


@dataclasses.dataclass(frozen=True)
class Unary:
    """`-x` or `not x`."""

    operator: str
    operand: Node


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """Two operands joined by + - * // %."""

    operator: str
    left: Node
    right: Node


@dataclasses.dataclass(frozen=True)
class Comparison:
    """`a < b`, or a chain `a < b <= c`: every neighbouring pair must hold."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


@dataclasses.dataclass(frozen=True)
class Logic:
    """Operands joined by `and`, or by `or`."""

    operator: str
    operands: tuple[Node, ...]


Node = Constant | Name | Unary | Arithmetic | Comparison | Logic


def tokenize(text: str) -> tuple[Token, ...]:
    """Split an expression into words; the last one is of kind `end`.

    Raises:
        ExpressionError: a character that the grammar does not have, or a text that is too long.
    """
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"the expression is longer than {MAX_LENGTH} characters", rule=RULE)
    tokens: list[Token] = []
    position, end = 0, len(text.rstrip())
    while position < end:
        match = _TOKEN.match(text, position)
        if match is None:
            column = position + len(text[position:]) - len(text[position:].lstrip())
            raise ExpressionError(
                f"{text[column:][:12]!r} at column {column + 1} is not understood", rule=RULE
            )
        for kind in ("number", "string", "name", "operator"):
            if match[kind] is not None:
                tokens.append(Token(kind, match[kind], match.start(kind)))
        position = match.end()
    if len(tokens) > MAX_WORDS:
        raise ExpressionError(f"the expression has more than {MAX_WORDS} words", rule=RULE)
    return (*tokens, Token("end", "", end))


class _Parser:
    """Recursive descent over the tokens of one expression."""

    def __init__(self, tokens: tuple[Token, ...]) -> None:
        self._tokens = tokens
        self._next = 0
        self._depth = 0

    def parse(self) -> Node:
        node = self._logic("or")
        if self._peek().kind != "end":
            raise self._unexpected()
        return node

    def _peek(self) -> Token:
        return self._tokens[self._next]

    def _take(self) -> Token:
        token = self._peek()
        self._next += 1
        return token

    def _unexpected(self) -> ExpressionError:
        token = self._peek()
        what = "the expression ends too early" if token.kind == "end" else f"{token.text!r} is not expected"
        return ExpressionError(f"{what} at column {token.start + 1}", rule=RULE)

    def _logic(self, operator: Literal["or", "and"]) -> Node:
        operands = [self._operand(operator)]
        while self._peek().text == operator and self._peek().kind == "name":
            self._take()
            operands.append(self._operand(operator))
        return operands[0] if len(operands) == 1 else Logic(operator, tuple(operands))

    def _operand(self, operator: str) -> Node:
        return self._logic("and") if operator == "or" else self._negation()

    def _negation(self) -> Node:
        if self._peek().kind == "name" and self._peek().text == "not":
            self._take()
            return Unary("not", self._nested(self._negation))
        return self._comparison()

    def _comparison(self) -> Node:
        first = self._sum()
        rest: list[tuple[str, Node]] = []
        while self._peek().text in _COMPARISONS and self._peek().kind == "operator":
            operator = self._take().text
            rest.append((operator, self._sum()))
        return Comparison(first, tuple(rest)) if rest else first

    def _sum(self) -> Node:
        node = self._product()
        while self._peek().kind == "operator" and self._peek().text in ("+", "-"):
            node = Arithmetic(self._take().text, node, self._product())
        return node

    def _product(self) -> Node:
        node = self._atom()
        while self._peek().kind == "operator" and self._peek().text in ("*", "//", "%"):
            node = Arithmetic(self._take().text, node, self._atom())
        return node

    def _atom(self) -> Node:
        token = self._peek()
        if token.kind == "number":
            return Constant(int(self._take().text))
        if token.kind == "string":
            return Constant(self._take().text[1:-1])
        if token.kind == "name" and token.text not in KEYWORDS:
            return Name(self._take().text)
        if token.kind == "operator" and token.text == "-":
            self._take()
            return Unary("-", self._nested(self._atom))
        if token.kind == "operator" and token.text == "(":
            self._take()
            node = self._nested(lambda: self._logic("or"))
            if self._peek().text != ")" or self._peek().kind != "operator":
                raise self._unexpected()
            self._take()
            return node
        raise self._unexpected()

    def _nested(self, parse: Callable[[], Node]) -> Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ExpressionError(f"the expression is nested more than {MAX_DEPTH} deep", rule=RULE)
        node = parse()
        self._depth -= 1
        return node


def parse_tokens(tokens: tuple[Token, ...]) -> Node:
    """Parse the words of one expression.

    Raises:
        ExpressionError: the words are not an expression; the message names the column.
    """
    return _Parser(tokens).parse()
