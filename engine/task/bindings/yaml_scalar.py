"""YAML scalars as training scripts read them (PyYAML's booleans, numbers of both versions)."""

from __future__ import annotations

import json
import math
import re

from engine.task.bindings.literal import Literal

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)", re.ASCII)
_FLOAT = re.compile(r"[-+]?(?:\.\d+|\d[\d_]*(?:\.[\d_]*)?)(?:[eE][-+]?\d+)?", re.ASCII)
_INFINITE = re.compile(r"(?P<sign>[-+]?)\.(?:inf|Inf|INF)")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {
    spelling: value
    for value, words in ((True, ("true", "yes", "on")), (False, ("false", "no", "off")))
    for word in words
    for spelling in (word, word.capitalize(), word.upper())
}
_SAFE_PLAIN = re.compile(r"[A-Za-z_][\w./+-]*", re.ASCII)
_SHORT_BOOL = frozenset("yYnN")


def resolve_plain(text: str) -> Literal:
    """The value of an unquoted scalar.

    Numbers with a leading zero mean different things in YAML 1.1 and 1.2 and stay texts.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text) and not re.match(r"[-+]?0\d", text):
        return float(text.replace("_", ""))
    infinite = _INFINITE.fullmatch(text)
    if infinite:
        return -math.inf if infinite["sign"] == "-" else math.inf
    return math.nan if text in (".nan", ".NaN", ".NAN") else text


def dump(literal: Literal, quote: str | None = None) -> str:
    """A literal as YAML on one line; texts are quoted where a reader could take them for something else.

    Args:
        literal: The value.
        quote: The quote that the replaced text had, or None.
    """
    if isinstance(literal, dict):
        return "{" + ", ".join(f"{dump(str(key))}: {dump(value)}" for key, value in literal.items()) + "}"
    if isinstance(literal, list):
        return "[" + ", ".join(map(dump, literal)) + "]"
    if isinstance(literal, float):
        text = repr(literal)
        return text.replace("e", ".0e") if "e" in text and "." not in text else text
    if not isinstance(literal, str):
        return json.dumps(literal)
    is_single_line = literal.isprintable()
    if quote == "'" and is_single_line:
        return "'" + literal.replace("'", "''") + "'"
    plain = (
        _SAFE_PLAIN.fullmatch(literal) and resolve_plain(literal) == literal and literal not in _SHORT_BOOL
    )
    return literal if plain and quote is None else '"' + "".join(map(_escaped, literal)) + '"'


def _escaped(character: str) -> str:
    """One character of a double-quoted text; what does not print is written by its number."""
    if character in ('"', "\\"):
        return "\\" + character
    if character.isprintable():
        return character
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
