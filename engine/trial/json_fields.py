"""Typed access to JSON objects that a hostile or dying process may have written.

A field of the wrong type reads as None and leaves a note; nothing here raises.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any

MAX_NOTES = 40
_INTEGER_LOW, _INTEGER_HIGH = -(1 << 63), 1 << 64
_NUMBER_LIMIT = 1e150
_NON_FINITE_WORDS = {"nan", "inf", "-inf", "+inf", "infinity", "-infinity"}


class Notes:
    """Problems met while reading, at most MAX_NOTES of them."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._dropped = 0

    def add(self, text: str) -> None:
        """Keep one problem."""
        if len(self._lines) < MAX_NOTES:
            self._lines.append(text)
        else:
            self._dropped += 1

    def lines(self) -> tuple[str, ...]:
        """All problems, in order; the last line counts those that were left out."""
        more = [f"{self._dropped} more problems"] if self._dropped else []
        return (*self._lines, *more)


def parse_object(text: str, where: str, notes: Notes) -> dict[str, Any] | None:
    """One JSON object, or None with a note; NaN and infinities are read as floats."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        notes.add(f"{where}: not JSON ({str(error)[:80]})")
        return None
    if not isinstance(value, dict):
        notes.add(f"{where}: not a JSON object")
        return None
    return value


def finite(value: object) -> float | None:
    """A bounded finite float, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and abs(number) <= _NUMBER_LIMIT else None


def integer(value: object) -> int | None:
    """A 64-bit integer, else None."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if _INTEGER_LOW <= value < _INTEGER_HIGH else None


def is_non_finite(value: object) -> bool:
    """Whether a value stands for NaN, an infinity or a number too large to square."""
    if isinstance(value, str):
        return value.lower() in _NON_FINITE_WORDS
    return isinstance(value, int | float) and not isinstance(value, bool) and finite(value) is None


class Fields:
    """Read-only view of one JSON object; `nonfinite` collects the names of non-finite fields."""

    def __init__(self, data: Mapping[str, Any], where: str, notes: Notes) -> None:
        self.data = data
        self.where = where
        self.notes = notes
        self.nonfinite: list[str] = []

    def _wrong(self, name: str, wanted: str) -> None:
        self.notes.add(f"{self.where}: {name} is no {wanted}: {str(self.data.get(name))[:60]!r}")

    def integer(self, name: str) -> int | None:
        """A 64-bit integer."""
        value = self.data.get(name)
        result = integer(value)
        if value is not None and result is None:
            self._wrong(name, "integer")
        return result

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.data.get(name)
        result = finite(value)
        if result is None and is_non_finite(value):
            self.nonfinite.append(name)
        elif value is not None and result is None:
            self._wrong(name, "number")
        return result

    def boolean(self, name: str) -> bool | None:
        """True or false."""
        value = self.data.get(name)
        if value is None or isinstance(value, bool):
            return value
        self._wrong(name, "boolean")
        return None

    def text(self, name: str) -> str | None:
        """A string."""
        value = self.data.get(name)
        if value is None or isinstance(value, str):
            return None if value is None else clean_text(value)
        self._wrong(name, "string")
        return None

    def texts(self, name: str) -> tuple[str, ...] | None:
        """A list, each element as a string; lists of numbers are joined as 4x512."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            self._wrong(name, "list")
            return None
        return tuple(_element_text(element) for element in value)

    def numbers(self, name: str) -> tuple[float, ...] | None:
        """A list of finite numbers; others are left out and the field is named in `nonfinite`."""
        value = self.data.get(name)
        if value is None:
            return None
        if not isinstance(value, list):
            self._wrong(name, "list")
            return None
        found = [finite(element) for element in value]
        kept = tuple(number for number in found if number is not None)
        if len(kept) < len(value):
            self.nonfinite.append(name)
        return kept

    def hexadecimal(self, name: str) -> int | None:
        """A 64-bit hash in hexadecimal."""
        value = self.data.get(name)
        if value is None:
            return None
        try:
            number = int(value, 16) if isinstance(value, str) and len(value) <= 20 else None
        except ValueError:
            number = None
        if number is None or not 0 <= number < _INTEGER_HIGH:
            self._wrong(name, "hash")
            return None
        return number

    def child(self, name: str) -> Fields | None:
        """A nested object."""
        value = self.data.get(name)
        if isinstance(value, dict):
            return Fields(value, f"{self.where}.{name}", self.notes)
        if value is not None:
            self._wrong(name, "object")
        return None

    def children(self, name: str) -> tuple[Fields, ...]:
        """A list of nested objects; absent reads as empty."""
        value = self.data.get(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self._wrong(name, "list")
            return ()
        return tuple(self._objects(value, name))

    def _objects(self, values: Iterable[object], name: str) -> Iterable[Fields]:
        for number, value in enumerate(values):
            if isinstance(value, dict):
                yield Fields(value, f"{self.where}.{name}[{number}]", self.notes)
            else:
                self.notes.add(f"{self.where}.{name}[{number}]: not an object")


def clean_text(text: str) -> str:
    """The text without lone surrogates, which no file could hold again."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _element_text(element: object) -> str:
    if isinstance(element, list):
        return "x".join(str(part) for part in element)
    return clean_text(str(element))
