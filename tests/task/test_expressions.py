"""Expressions compute what Python computes, and accept nothing that is not in their grammar."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.schema.base import Scalar
from engine.task.expression_syntax import DivisionByZeroError, ExpressionError
from engine.task.expressions import parse

NAMES: dict[str, Scalar] = {
    "a": 3,
    "b": 8,
    "c": -2,
    "zero": 0,
    "flag": True,
    "mode": "off",
    "size": "4",
    "x": 0.5,
}

numbers = st.recursive(
    st.one_of(st.integers(0, 9).map(str), st.sampled_from(["a", "b", "c", "zero"])),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%"]), inner).map(" ".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
)
comparisons = st.tuples(
    numbers, st.sampled_from(["==", "!=", "<", "<=", ">", ">="]), numbers, st.sampled_from(["", " < b"])
).map(lambda parts: f"{parts[0]} {parts[1]} {parts[2]}{parts[3]}")
conditions = st.recursive(
    comparisons,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["and", "or"]), inner).map(" ".join),
        inner.map(lambda text: f"not {text}"),
        inner.map(lambda text: f"({text})"),
    ),
    max_leaves=6,
)


@given(st.one_of(numbers, conditions))
def test_values_are_those_of_python(text: str) -> None:
    """Precedence, chains, floor division of negatives and short circuits are Python's."""
    try:
        expected = eval(text, {"__builtins__": {}}, dict(NAMES))
    except ZeroDivisionError:
        with pytest.raises(DivisionByZeroError):
            parse(text).evaluate(NAMES)
        return
    assert parse(text).evaluate(NAMES) == expected


@given(st.text(max_size=30))
def test_any_text_parses_or_is_refused(text: str) -> None:
    """No text raises anything but the typed error."""
    with contextlib.suppress(ExpressionError):
        assert parse(text).text == text


REFUSED = [
    *(
        "",
        "1 +",
        "a b",
        "a.b",
        "f(1)",
        "a[0]",
        "1.5",
        "1e3",
        "a / b",
        "a ** b",
        "a = b",
        "'x",
        "a and",
        "not",
        "(a",
    ),
    *(
        "a if b else c",
        "lambda: 1",
        "a is b",
        "a in b",
        "~a",
        "a & b",
        "f'x'",
        "__import__('os')",
        "1_0",
        "é",
    ),
    *(
        "(" * 200 + "a" + ")" * 200,
        "+".join(["a"] * 400),
        "a" * 2000,
        "a < < b",
        "a\0b",
        "-" * 99 + "a",
        "0x10",
    ),
]


@pytest.mark.parametrize("text", REFUSED)
def test_everything_else_is_refused(text: str) -> None:
    """What the grammar does not have is an error with the column or the limit."""
    with pytest.raises(ExpressionError, match=r"column|longer|nested|words"):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("flag", True),
        ("not flag", False),
        ("mode == 'off' and not flag", False),
        ("flag == 'true'", True),
        ("size * 2 == b", True),
        ("size == 4", True),
        ("size == '4'", True),
        ("mode == 4", False),
        ("mode != 4", True),
        ("x < 1 <= a", True),
        ("zero != 0 and b % zero == 0", False),
    ],
)
def test_texts_booleans_and_numbers(text: str, expected: bool) -> None:
    """Canonical texts that are numbers count as numbers; booleans are conditions."""
    assert parse(text).holds(NAMES) is expected


@pytest.mark.parametrize(
    "text", ["flag + 1", "mode < 3", "flag == 1", "a", "mode", "not a", "a and flag", "nope == 1"]
)
def test_wrong_kinds_are_errors(text: str) -> None:
    """A condition over numbers, arithmetic over texts or booleans, and unknown names are typed errors."""
    with pytest.raises(ExpressionError):
        parse(text).holds(NAMES)


def test_names_and_numbers_are_shown() -> None:
    """The whole equation with its numbers, texts quoted."""
    expression = parse("a * (b - a) == 15 and mode != 'on'")
    assert expression.names == {"a", "b", "mode"}
    assert expression.with_numbers(NAMES) == "3 * (8 - 3) == 15 and 'off' != 'on'"
    assert parse("b // a").inexact_division(NAMES) == "8 // 3"
    assert parse("b // (a + 1)").inexact_division(NAMES) is None
