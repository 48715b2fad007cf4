"""Values in JSON files: the value's characters are exchanged, all others stay."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

from engine.schema.task import Unset
from engine.task.bindings.document import after_edit, lookup, nested
from engine.task.bindings.keypath import list_index, split_key
from engine.task.bindings.literal import BindingError, Literal, same
from engine.task.bindings.text_file import TextFile, not_changeable

_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


@dataclasses.dataclass(frozen=True)
class _Member:
    """One member of an object (or element of a list): offsets of key, value and end."""

    name: str
    start: int
    value: int
    end: int


def read(file: TextFile, key: str) -> Literal | Unset:
    """The value at a dotted key, UNSET where it is absent.

    Raises:
        BindingError: the file is not JSON, or the key is not a dotted key.
    """
    return lookup(load(file), split_key(key))


def write(file: TextFile, key: str, literal: Literal | Unset) -> str:
    """The file's text with one value set or removed.

    Raises:
        BindingError: the file is not JSON, or the edit would touch more than this value.
    """
    parts = split_key(key)
    expected = after_edit(load(file), parts, literal)
    text = None if expected is None else _edited(file.text, parts, literal)
    if text is None or not same(json.loads(text), expected):
        raise not_changeable(file.name, key, "other keys would change")
    return text


def load(file: TextFile) -> Any:
    """The whole document.

    Raises:
        BindingError: the file is not JSON.
    """
    try:
        return json.loads(file.text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BindingError("file", f"not valid JSON: {error}", value=file.name) from error


def _edited(text: str, parts: tuple[str, ...], literal: Literal | Unset) -> str | None:
    start = _skip(text, 0)
    for depth, part in enumerate(parts):
        if text[start] not in "{[":
            return None
        members = _members(text, start)
        found = next((member for member in reversed(members) if member.name == part), None)
        if text[start] == "[":
            index = list_index(part, len(members))
            found = None if index is None else members[index]
        is_last = depth == len(parts) - 1
        if found is None:
            if isinstance(literal, Unset):
                return text
            return _added(text, start, members, part, nested(parts[depth + 1 :], literal))
        replaceable = is_last or text[found.value : found.end] == "null"
        if replaceable and not isinstance(literal, Unset):
            value = json.dumps(nested(parts[depth + 1 :], literal), ensure_ascii=False)
            return text[: found.value] + value + text[found.end :]
        if is_last:
            return _removed(text, start, members, found)
        start = found.value
    return None


def _skip(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return position if match is None else match.end()


def _members(text: str, start: int) -> list[_Member]:
    """The members of the object or list that starts at `start`; the text is valid JSON."""
    is_object = text[start] == "{"
    position = _skip(text, start + 1)
    found: list[_Member] = []
    while text[position] not in "}]":
        name, value = str(len(found)), position
        if is_object:
            name, after = _DECODER.raw_decode(text, position)
            value = _skip(text, _skip(text, after) + 1)
        _, end = _DECODER.raw_decode(text, value)
        found.append(_Member(name, position, value, end))
        position = _skip(text, end)
        if text[position] == ",":
            position = _skip(text, position + 1)
    return found


def _added(text: str, start: int, members: list[_Member], name: str, literal: Literal) -> str | None:
    if text[start] != "{":
        return None
    key, value = json.dumps(name, ensure_ascii=False), json.dumps(literal, ensure_ascii=False)
    if not members:
        return f"{text[: start + 1]}{key}: {value}{text[_skip(text, start + 1) :]}"
    first, last = members[0], members[-1]
    gap = (
        text[start + 1 : first.start] if len(members) == 1 else text[members[-2].end : last.start].strip(",")
    )
    if gap == "" and len(members) == 1 and text[start + 1 : first.start] == "":
        gap = " " if ": " in text[first.start : first.value] else ""
    colon = text[first.start : first.value].rpartition('"')[2]
    return f"{text[: last.end]},{gap}{key}{colon}{value}{text[last.end :]}"


def _removed(text: str, start: int, members: list[_Member], gone: _Member) -> str | None:
    if text[start] != "{":
        return None
    index = members.index(gone)
    if len(members) == 1:
        return text[: start + 1] + text[_skip(text, gone.end) :]
    if index == 0:
        return text[: gone.start] + text[members[1].start :]
    return text[: members[index - 1].end] + text[gone.end :]
