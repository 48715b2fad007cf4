"""Dotted keys: `train.optimizer.name`, `stages.0."a.b"`."""

from __future__ import annotations

import re

from engine.task.bindings.literal import BindingError

_PART = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|([^."'\s][^."']*))\s*(\.|\Z)""")


def split_key(key: str) -> tuple[str, ...]:
    """Split a dotted key; parts with dots are quoted, an integer part counts into a list from 0.

    Raises:
        BindingError: the key is empty or has an empty or badly quoted part.
    """
    parts: list[str] = []
    position, last = 0, False
    while not last:
        match = _PART.match(key, position)
        if match is None:
            raise BindingError(
                "key",
                "not a dotted key",
                value=key,
                rule='names joined by dots; a part with dots is quoted: train."a.b".0',
            )
        double, single, bare = match[1], match[2], match[3]
        parts.append(double if double is not None else single if single is not None else bare.strip())
        position, last = match.end(), match[4] == ""
    return tuple(parts)


def list_index(part: str, length: int) -> int | None:
    """The list position that a part of a key names, or None where there is no such element."""
    if not part.isascii() or not part.isdigit():
        return None
    return int(part) if int(part) < length else None
