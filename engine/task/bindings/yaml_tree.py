"""The node tree of a YAML file: where each value stands, and what it means."""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from engine.task.bindings.literal import BindingError, Literal
from engine.task.bindings.text_file import TextFile
from engine.task.bindings.yaml_scalar import resolve_plain

_PROPERTIES = re.compile(r"(?:[&!]\S*\s+)*")


def compose(file: TextFile) -> Node | None:
    """The root node of the only document, None where the file is empty.

    Raises:
        BindingError: the file is not YAML, or holds several documents.
    """
    try:
        root = YAML(typ="rt", pure=True).compose(file.text)
    except (YAMLError, RecursionError, ValueError) as error:
        message = " ".join(str(error).split())
        raise BindingError(
            "file", f"not valid YAML: {message}", value=file.name, rule="one YAML document"
        ) from error
    return root if isinstance(root, Node) else None


def children(node: MappingNode) -> list[tuple[str | None, Node, Node]]:
    """The entries of a mapping as (key text, key node, value node); None for keys that are no scalars."""
    return [(key.value if isinstance(key, ScalarNode) else None, key, value) for key, value in node.value]


def to_data(node: Node | None, active: tuple[int, ...] = ()) -> Any:
    """The plain data of a node; merges (`<<`) are applied, the last of equal keys wins.

    Raises:
        BindingError: an alias that contains itself.
    """
    if node is None:
        return None
    if id(node) in active:
        raise BindingError("file", "an alias contains itself")
    active = (*active, id(node))
    if isinstance(node, ScalarNode):
        return scalar(node)
    if isinstance(node, SequenceNode):
        return [to_data(item, active) for item in node.value]
    if not isinstance(node, MappingNode):
        return None
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    for name, key, value in children(node):
        if name == "<<" and isinstance(key, ScalarNode) and key.style is None:
            sources = value.value if isinstance(value, SequenceNode) else [value]
            for source in reversed(sources):
                data = to_data(source, active)
                merged |= data if isinstance(data, dict) else {}
        else:
            own[name if name is not None else repr(to_data(key, active))] = to_data(value, active)
    return merged | own


def scalar(node: ScalarNode) -> Literal:
    """The value of a scalar node; quoted and block scalars are texts."""
    return resolve_plain(node.value) if node.style is None else node.value


def value_start(text: str, node: Node) -> int:
    """Where the value itself begins, after anchor and tag."""
    start: int = node.start_mark.index
    match = _PROPERTIES.match(text, start, node.end_mark.index)
    return start if match is None else match.end()


def content_end(node: Node) -> int:
    """Where the last character of a node stands; block collections reach no further than their last value."""
    if not isinstance(node, MappingNode | SequenceNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return entry_end(*last) if isinstance(last, tuple) else content_end(last)


def entry_end(key: Node, value: Node) -> int:
    """Where the last character of a mapping's entry stands.

    The parser puts an absent value at the next token and an alias at its anchor: both end with the key.
    """
    after_key: int = key.end_mark.index
    if value.start_mark.index < after_key:
        return after_key
    return after_key + 1 if is_absent(value) else content_end(value)


def is_absent(value: Node) -> bool:
    """Whether nothing is written for a value: `key:`."""
    return isinstance(value, ScalarNode) and value.style is None and value.value == ""
