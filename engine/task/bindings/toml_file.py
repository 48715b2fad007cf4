"""Values in TOML files: tomlkit keeps comments, order and spelling of everything else."""

from __future__ import annotations

import tomllib
from typing import Any

import tomlkit
import tomlkit.exceptions
from tomlkit.items import AoT, InlineTable, Item

from engine.schema.task import Unset
from engine.task.bindings.document import after_edit, lookup
from engine.task.bindings.keypath import list_index, split_key
from engine.task.bindings.literal import BindingError, Literal, same
from engine.task.bindings.text_file import TextFile, not_changeable


def read(file: TextFile, key: str) -> Literal | Unset:
    """The value at a dotted key, UNSET where it is absent.

    Raises:
        BindingError: the file is not TOML, or the key is not a dotted key.
    """
    return lookup(load(file), split_key(key))


def write(file: TextFile, key: str, literal: Literal | Unset) -> str:
    """The file's text with one value set or removed.

    Raises:
        BindingError: the file is not TOML, or the edit would touch more than this value.
    """
    parts = split_key(key)
    expected = after_edit(load(file), parts, literal)
    document = tomlkit.parse(file.text)
    if expected is None or document.as_string() != file.text:
        raise not_changeable(file.name, key, "its layout is not supported")
    try:
        _edit(document, parts, literal, file.newline)
        text = document.as_string()
        exact = same(tomllib.loads(text), expected)
    except (
        tomlkit.exceptions.TOMLKitError,
        tomllib.TOMLDecodeError,
        TypeError,
        KeyError,
        ValueError,
    ) as error:
        raise not_changeable(file.name, key, str(error)) from error
    if not exact:
        raise not_changeable(file.name, key, "other keys would change")
    return text


def load(file: TextFile) -> dict[str, Any]:
    """The whole document.

    Raises:
        BindingError: the file is not TOML.
    """
    try:
        return tomllib.loads(file.text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BindingError("file", f"not valid TOML: {error}", value=file.name) from error


def _edit(document: Any, parts: tuple[str, ...], literal: Literal | Unset, newline: str) -> None:
    node = document
    for part in parts[:-1]:
        if isinstance(node, list | AoT):
            node = node[list_index(part, len(node)) or 0]
            continue
        if part not in node:
            if isinstance(literal, Unset):
                return
            node[part] = tomlkit.table()
        node = node[part]
    last: Any = parts[-1]
    if isinstance(node, list | AoT):
        last = list_index(last, len(node))
    if isinstance(literal, Unset):
        if last in node:
            del node[last]
        return
    if isinstance(node, list) or last in node:
        node[last] = literal
        return
    item: Item = tomlkit.item(literal)
    item.trivia.trail = newline if not isinstance(node, InlineTable) else ""
    node[last] = item
