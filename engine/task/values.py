"""The values of a parameter: canonical value → literal, and how texts are matched to canonical values."""

from __future__ import annotations

import decimal
import math
from collections.abc import Iterable, Mapping
from typing import Any

import pydantic

from engine.schema.base import Scalar
from engine.schema.task import Range, Unset
from engine.task.bindings.literal import UNSET, Literal, same
from engine.task.expressions import as_number, scalar_text
from engine.task.nearest import did_you_mean
from engine.task.place import Place

MAX_VALUES = 10_000
Literals = dict[Scalar, Literal | Unset]


def read_values(values: Mapping[str, Any] | list[Scalar], place: Place) -> Literals:
    """The canonical values in the file's order, each with what is written for it.

    Raises:
        TaskFileError: no value, equal values, an impossible range, or a literal that no file can hold.
    """
    if isinstance(values, list):
        literals: Literals = dict(_distinct(values, place))
    elif _is_range(values):
        literals = {value: value for value in _range(values, place)}
    else:
        literals = {}
        for canonical, literal in values.items():
            new = _literal(literal, place.at(canonical))
            twin = next((name for name, old in literals.items() if same(old, new)), None)
            if twin is not None:
                raise place.at(canonical).error(
                    f"the same literal as {twin}", value=literal, rule="one literal for each value"
                )
            literals[canonical] = new
    if not literals:
        raise place.error("no value", value=values, rule="at least one value")
    return literals


def find_canonical(wanted: Scalar, canonicals: Iterable[Scalar]) -> Scalar | None:
    """The canonical value that a scalar or a text means, or None: "8" and 8.0 mean 8, "True" means true."""
    options = list(canonicals)
    for option in options:
        if type(option) is type(wanted) and option == wanted:
            return option
    text = scalar_text(wanted).strip()
    for option in options:
        if scalar_text(option) == text or (
            isinstance(option, bool) and text.casefold() == scalar_text(option)
        ):
            return option
    number = None if isinstance(wanted, bool) else _finite(text)
    if number is None:
        return None
    return next((option for option in options if as_number(option) == number), None)


def subset(wanted: list[Scalar], canonicals: Iterable[Scalar], place: Place) -> tuple[Scalar, ...]:
    """The canonical values of a list such as `initial`, without repeats.

    Raises:
        TaskFileError: an element that is no value of the parameter, or none at all.
    """
    options = list(canonicals)
    if not wanted:
        raise place.error("no value", value=wanted, rule="at least one value")
    return tuple(dict.fromkeys(one_of(item, options, place.at(index)) for index, item in enumerate(wanted)))


def one_of(wanted: Scalar, canonicals: Iterable[Scalar], place: Place) -> Scalar:
    """The canonical value that is meant.

    Raises:
        TaskFileError: it is no value of the parameter.
    """
    options = list(canonicals)
    found = find_canonical(wanted, options)
    if found is None:
        texts = [scalar_text(option) for option in options]
        raise place.error(
            "not one of the values",
            value=wanted,
            rule="one of " + ", ".join(texts[:20]) + (", …" if len(texts) > 20 else ""),
            hint=did_you_mean(scalar_text(wanted), texts),
        )
    return found


def _distinct(values: list[Scalar], place: Place) -> Iterable[tuple[Scalar, Scalar]]:
    seen: dict[Scalar, int] = {}
    has_bool = any(isinstance(value, bool) for value in values)
    for index, value in enumerate(values):
        if has_bool and not isinstance(value, bool | str):
            raise place.at(index).error(
                "a number among booleans", value=value, rule="booleans or numbers, not both"
            )
        number = as_number(value)
        key = scalar_text(value) if number is None else number
        if key in seen:
            raise place.at(index).error(
                f"equal to element {seen[key]}", value=value, rule="values that differ from each other"
            )
        seen[key] = index
        yield value, value


def _is_range(values: Mapping[str, Any]) -> bool:
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values())
    return bool(values) and values.keys() <= Range.model_fields.keys() and numeric


def _range(values: Mapping[str, Any], place: Place) -> list[int | float]:
    for key in Range.model_fields:
        if key not in values:
            raise place.at(key).error("missing", rule="a range has min, max and step")
        if not math.isfinite(values[key]):
            raise place.at(key).error("not finite", value=values[key], rule="a finite number")
    low, high, step = (decimal.Decimal(str(values[key])) for key in ("min", "max", "step"))
    if step <= 0:
        raise place.at("step").error("the range never ends", value=values["step"], rule="step > 0")
    if low > high:
        raise place.at("max").error(f"below min = {low}", value=values["max"], rule="max >= min")
    steps, rest = divmod(high - low, step)
    if rest:
        below = low + steps * step
        raise place.at("max").error(
            "is not reached by the steps",
            value=values["max"],
            rule="max = min + a whole number of steps",
            hint=f"did you mean {below} or {below + step}?",
        )
    if steps >= MAX_VALUES:
        raise place.error(f"{steps + 1} values", rule=f"at most {MAX_VALUES}", hint="take a larger step")
    is_integer = all(isinstance(values[key], int) for key in ("min", "max", "step"))
    points = [low + index * step for index in range(int(steps) + 1)]
    return [int(point) if is_integer else float(point) for point in points]


def _literal(literal: Any, place: Place) -> Literal | Unset:
    if isinstance(literal, dict) and "unset" in literal:
        try:
            Unset.model_validate(literal, strict=True)
        except pydantic.ValidationError as error:
            raise place.error(
                "not a literal", value=literal, rule="{ unset = true } removes the key, flag or variable"
            ) from error
        return UNSET
    if isinstance(literal, dict):
        return {key: _literal_item(item, place.at(key)) for key, item in literal.items()}
    if isinstance(literal, list):
        return [_literal_item(item, place.at(index)) for index, item in enumerate(literal)]
    return _literal_item(literal, place)


def _literal_item(literal: Any, place: Place) -> Literal:
    if isinstance(literal, dict | list):
        return _literal(literal, place)
    if not isinstance(literal, bool | int | float | str):
        raise place.error(
            f"a {type(literal).__name__} cannot be written",
            value=str(literal),
            rule="a boolean, number or text",
        )
    if isinstance(literal, float) and not math.isfinite(literal):
        raise place.error("not finite", value=literal, rule="a finite number")
    return literal


def _finite(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
