"""Values in YAML files: the value's characters are exchanged, all others stay.

A round trip through a YAML emitter re-wraps, re-indents and re-quotes; exchanging characters at the
positions that the parser reports does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from engine.schema.task import Unset
from engine.task.bindings.document import after_edit, lookup, nested
from engine.task.bindings.keypath import list_index, split_key
from engine.task.bindings.literal import BindingError, Literal, same
from engine.task.bindings.text_file import TextFile, not_changeable
from engine.task.bindings.yaml_scalar import dump
from engine.task.bindings.yaml_tree import (
    children,
    compose,
    content_end,
    entry_end,
    is_absent,
    to_data,
    value_start,
)


def read(file: TextFile, key: str) -> Literal | Unset:
    """The value at a dotted key (aliases and merges followed), UNSET where it is absent.

    Raises:
        BindingError: the file is not YAML, or the key is not a dotted key.
    """
    return lookup(load(file), split_key(key))


def write(file: TextFile, key: str, literal: Literal | Unset) -> str:
    """The file's text with one value set or removed.

    Raises:
        BindingError: the file is not YAML, or the edit would touch more than this value.
    """
    parts = split_key(key)
    root = compose(file)
    data = to_data(root)
    expected = after_edit({} if data is None else data, parts, literal)
    if expected is None:
        raise not_changeable(file.name, key, "a part of the key is no mapping")
    for text in _edits(file, root, parts, literal):
        if _means(text, expected):
            return text
    raise not_changeable(file.name, key, "other keys would change: an alias, an anchor or a merge")


def load(file: TextFile) -> Any:
    """The whole document, aliases and merges followed.

    Raises:
        BindingError: the file is not YAML.
    """
    return to_data(compose(file))


def _means(text: str, expected: Any) -> bool:
    try:
        return same(to_data(compose(TextFile("edited", text))), expected)
    except BindingError:
        return False


def _edits(
    file: TextFile, root: Node | None, parts: tuple[str, ...], literal: Literal | Unset
) -> Iterator[str]:
    """Texts that may be the wanted one, the nicest first."""
    node = root
    for depth, part in enumerate(parts):
        found = _entry(node, part)
        is_last = depth == len(parts) - 1
        if found is None or (isinstance(literal, Unset) and is_last):
            if isinstance(literal, Unset):
                yield from [file.text] if found is None else _removals(file.text, node, part)
            else:
                yield from _additions(file, node, part, nested(parts[depth + 1 :], literal))
            return
        key, value = found
        if (is_last or is_absent(value)) and not isinstance(literal, Unset):
            yield _replaced(file, key, value, nested(parts[depth + 1 :], literal))
            return
        node = value


def _entry(node: Node | None, part: str) -> tuple[Node | None, Node] | None:
    """Key and value node of one part of the key; entries that come by a merge are not the node's own."""
    if isinstance(node, SequenceNode):
        index = list_index(part, len(node.value))
        return None if index is None else (None, node.value[index])
    if not isinstance(node, MappingNode):
        return None
    own = [(key, value) for name, key, value in children(node) if name == part]
    return own[-1] if own else None


def _replaced(file: TextFile, key: Node | None, node: Node, literal: Literal) -> str:
    text, start, end = file.text, value_start(file.text, node), content_end(node)
    if is_absent(node) and key is not None:
        start = end = text.find(":", key.end_mark.index) + 1
    old = text[start:end]
    quote = old[0] if old[:1] in ("'", '"') and isinstance(node, ScalarNode) else None
    new = dump(literal, quote)
    if old.endswith("\n"):
        new += file.newline
    if start and not text[start - 1].isspace() and text[start - 1] not in "[{,":
        new = " " + new
    return text[:start] + new + text[end:]


def _additions(file: TextFile, node: Node | None, name: str, literal: Literal) -> Iterator[str]:
    text, line, newline = file.text, f"{dump(name)}: {dump(literal)}", file.newline
    if node is None:
        gap = newline if text and not text.endswith("\n") else ""
        yield f"{text}{gap}{line}{newline}"
    if not isinstance(node, MappingNode):
        return
    start = value_start(text, node)
    if node.flow_style:
        end = node.end_mark.index - 1
        yield text[:end].rstrip() + (", " if node.value else "") + line + text[len(text[:end].rstrip()) :]
        yield f"{text[: start + 1]}{line}, {text[start + 1 :]}"
        return
    first = node.value[0][0].start_mark
    indent = newline + " " * first.column
    end = content_end(node)
    if text[end - 1 : end] == "\n":
        yield text[:end] + indent[len(newline) :] + line + newline + text[end:]
    else:
        stop = text.find("\n", end)
        stop = len(text) if stop < 0 else stop - (text[stop - 1] == "\r")
        yield text[:stop] + indent + line + text[stop:]
    yield text[: first.index] + line + indent + text[first.index :]


def _removals(text: str, node: Node | None, name: str) -> Iterator[str]:
    if not isinstance(node, MappingNode):
        return
    entries = [(key, value) for _, key, value in children(node)]
    index = max(i for i, (_, key, _) in enumerate(children(node)) if key.value == name)
    key, value = entries[index]
    start = key.start_mark.index
    end = entry_end(key, value)
    if len(entries) == 1:
        new = "" if node.flow_style else "{}" + ("\n" if text[end - 1] == "\n" else "")
        yield text[:start] + new + text[end:]
        return
    if node.flow_style:
        if index + 1 < len(entries):
            yield text[:start] + text[entries[index + 1][0].start_mark.index :]
        else:
            yield text[: entry_end(*entries[index - 1])] + text[end:]
        return
    line_start = text.rfind("\n", 0, start) + 1
    stop = end if text[end - 1] == "\n" else text.find("\n", end) + 1 or len(text)
    if not text[line_start:start].strip():
        yield text[:line_start] + text[stop:]
    if index + 1 < len(entries):
        yield text[:start] + text[entries[index + 1][0].start_mark.index :]
