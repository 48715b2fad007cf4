"""Sizes in the sentences of allocators."""

from __future__ import annotations

import re

from engine.units import BYTES_PER_GIB

SIZE = r"([\d.,]+ ?(?:bytes|[KMGTPE]i?B|B))"
_PARTS = re.compile(r"([\d.,]+) ?(bytes|[KMGTPE]i?B|B)")
_FACTORS = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50, "E": 60}


def size_bytes(text: str) -> float | None:
    """`64.00 MiB` → bytes; None for what is no size. MB and MiB both mean 2**20, as torch prints them."""
    match = _PARTS.fullmatch(text.strip())
    if match is None:
        return None
    try:
        number = float(match[1].replace(",", ""))
    except ValueError:
        return None
    unit = match[2]
    return number * (1 << _FACTORS["" if unit in ("bytes", "B") else unit[0]])


def size_gib(text: str) -> float | None:
    """`64.00 MiB` → GiB; None for what is no size."""
    n_bytes = size_bytes(text)
    return None if n_bytes is None else n_bytes / BYTES_PER_GIB


def search_gib(pattern: re.Pattern[str], text: str) -> float | None:
    """The size in the first group of the first match, GiB."""
    match = pattern.search(text)
    return size_gib(match[1]) if match is not None else None
