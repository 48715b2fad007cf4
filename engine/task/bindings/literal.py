"""Literals: what stands in a file, after a flag or in a variable; and when two of them are the same."""

from __future__ import annotations

import json
import math
from typing import Any

from engine.errors import UsageError
from engine.schema.task import Binding, EnvBinding, FileBinding, FlagBinding, Unset

Literal = Any
"""bool, int, float, str, None, or lists and dicts of them; `Unset` where there is nothing."""

UNSET = Unset(unset=True)
_TRUE = ("true", "yes", "on", "1")
_FALSE = ("false", "no", "off", "0")


class BindingError(UsageError):
    """A binding does not fit the project.

    `field` is the key of the binding that is wrong: file, key, flag, env, python or name.
    """

    kind = "binding"

    def __init__(
        self,
        field: str,
        message: str,
        *,
        file: str | None = None,
        value: object = None,
        rule: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Name the field and what is wrong with it; the rest is as for every error."""
        super().__init__(message, file=file, key=field, value=value, rule=rule, hint=hint)
        self.field = field


def describe(binding: Binding) -> str:
    """A binding in words: `config.toml: train.batch`, `flag --x`, `variable X`, `train.py: BATCH`."""
    if isinstance(binding, FileBinding):
        return f"{binding.file}: {binding.key}"
    if isinstance(binding, FlagBinding):
        return f"flag {binding.flag}"
    if isinstance(binding, EnvBinding):
        return f"variable {binding.env}"
    return f"{binding.python}: {binding.name}"


def same(left: Literal, right: Literal) -> bool:
    """Whether two literals mean the same: 2 == 2.0, but true is no 1 and "2" is no 2."""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool) and left == right
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, float) and isinstance(right, float) and math.isnan(left):
        return math.isnan(right)
    return bool(left == right)


def same_text(found: Literal, wanted: Literal) -> bool:
    """Whether a text from a command line or a variable means the literal: "8" is 8, "True" is true."""
    if isinstance(found, Unset) or isinstance(wanted, Unset):
        return isinstance(found, Unset) and isinstance(wanted, Unset)
    if isinstance(wanted, bool):
        if isinstance(found, bool):
            return found == wanted
        return str(found).casefold() in (_TRUE if wanted else _FALSE)
    if isinstance(found, bool):
        return False
    if isinstance(wanted, int | float):
        try:
            return float(str(found)) == wanted
        except ValueError:
            return False
    return str(found) == text_of(wanted)


def text_of(literal: Literal, like: str | None = None) -> str:
    """A literal as an argument or a variable; booleans are spelt like the text they replace."""
    if not isinstance(literal, bool):
        return literal if isinstance(literal, str) else json.dumps(literal)
    for pair in (_TRUE, _FALSE):
        if like is not None and like.casefold() in pair:
            word = (_TRUE if literal else _FALSE)[pair.index(like.casefold())]
            return word.capitalize() if like[:1].isupper() and like[1:].islower() else word
    return "true" if literal else "false"
