"""Parsed documents: look a dotted key up, and what the document must hold after an edit."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from engine.schema.task import Unset
from engine.task.bindings.keypath import list_index
from engine.task.bindings.literal import UNSET, Literal


def lookup(data: Any, parts: Sequence[str]) -> Literal | Unset:
    """The value at a dotted key, or UNSET where there is none."""
    for part in parts:
        if isinstance(data, dict) and part in data:
            data = data[part]
        elif isinstance(data, list) and (index := list_index(part, len(data))) is not None:
            data = data[index]
        else:
            return UNSET
    return data


def after_edit(data: Any, parts: Sequence[str], literal: Literal | Unset) -> Any:
    """A copy of the document with one value set or removed; None where that is not possible."""
    result = copy.deepcopy(data)
    node = result
    for part in parts[:-1]:
        if isinstance(node, dict):
            if node.get(part) is None:
                node[part] = {}
            node = node[part]
        elif isinstance(node, list) and (index := list_index(part, len(node))) is not None:
            node = node[index]
        else:
            return None
    last = parts[-1]
    if isinstance(node, dict):
        if isinstance(literal, Unset):
            node.pop(last, None)
        else:
            node[last] = literal
        return result
    if isinstance(node, list) and not isinstance(literal, Unset):
        index = list_index(last, len(node))
        if index is not None:
            node[index] = literal
            return result
    return None


def nested(parts: Sequence[str], literal: Literal) -> Literal:
    """The literal wrapped in one mapping for each part: a.b, 1 → {a: {b: 1}}."""
    for part in reversed(parts):
        literal = {part: literal}
    return literal


def dotted_keys(data: Any, prefix: str = "") -> dict[str, Any]:
    """Every value below mappings and lists by its dotted key, parts with dots quoted."""
    if isinstance(data, dict):
        items = [(f'"{key}"' if "." in str(key) else str(key), value) for key, value in data.items()]
    elif isinstance(data, list):
        items = [(str(index), value) for index, value in enumerate(data)]
    else:
        return {}
    found: dict[str, Any] = {}
    for key, value in items:
        found[prefix + key] = value
        found |= dotted_keys(value, f"{prefix}{key}.")
    return found
