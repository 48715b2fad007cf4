"""Slurm's short form of node names, `rack[0-1]_node[01-16,20]`, written out."""

from __future__ import annotations

import re

MAX_HOSTS = 100_000
"""More names than any cluster has: beyond this a list is a mistake, not a list."""

_NO_NODES = frozenset({"", "(null)", "n/a", "none", "none assigned", "unknown"})
_SEPARATOR = re.compile(r"[,\s]+")
_RANGE = re.compile(r"([0-9]+)(?:-([0-9]+))?")


def expand(hostlist: str) -> list[str]:
    """Every name of a list, in its order, repetitions included.

    Args:
        hostlist: As Slurm prints it; numbers keep the width of the range's first number, several brackets in
            one name multiply with the last running fastest.

    Raises:
        ValueError: brackets or ranges are malformed, or more than MAX_HOSTS names would result.
    """
    if hostlist.strip().lower() in _NO_NODES:
        return []
    names: list[str] = []
    for item in _items(hostlist):
        names.extend(_expand_item(item))
        if len(names) > MAX_HOSTS:
            raise ValueError(f"more than {MAX_HOSTS} nodes in {hostlist[:80]!r}")
    return names


def _items(hostlist: str) -> list[str]:
    """Split at the separators that are not inside brackets."""
    items: list[str] = []
    start = 0
    inside = False
    for at, letter in enumerate(hostlist):
        if letter == "[":
            if inside:
                raise ValueError(f"nested brackets in {hostlist[:80]!r}")
            inside = True
        elif letter == "]":
            if not inside:
                raise ValueError(f"unbalanced brackets in {hostlist[:80]!r}")
            inside = False
        elif not inside and _SEPARATOR.match(letter):
            items.append(hostlist[start:at])
            start = at + 1
    if inside:
        raise ValueError(f"unbalanced brackets in {hostlist[:80]!r}")
    items.append(hostlist[start:])
    return [item for item in items if item]


def _expand_item(item: str) -> list[str]:
    names = [""]
    rest = item
    while rest:
        literal, bracket, rest = rest.partition("[")
        names = [name + literal for name in names]
        if bracket:
            inner, _, rest = rest.partition("]")
            numbers = _numbers(inner)
            if len(names) * len(numbers) > MAX_HOSTS:
                raise ValueError(f"more than {MAX_HOSTS} nodes in {item[:80]!r}")
            names = [name + number for name in names for number in numbers]
    return names


def _numbers(inner: str) -> list[str]:
    numbers: list[str] = []
    for part in inner.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"not a range of nodes: [{inner[:80]}]")
        low, high = match.group(1), match.group(2) or match.group(1)
        if int(high) < int(low) or int(high) - int(low) >= MAX_HOSTS:
            raise ValueError(f"not a range of nodes: [{inner[:80]}]")
        numbers.extend(f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1))
    return numbers
