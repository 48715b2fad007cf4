"""Placeholders of the training command: {nnodes} {node_rank} {nproc} {world_size} {master_addr} and so on."""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACEHOLDERS = ("nnodes", "node_rank", "nproc", "world_size", "master_addr", "master_port", "output_dir")
_PLACEHOLDER = re.compile(r"(?<![{$])\{([A-Za-z_]\w*)\}(?!\})", re.ASCII)


def placeholders_in(word: str) -> list[str]:
    """The names in single braces; `${HOME}`, `{{ jinja }}` and JSON are no placeholders."""
    return _PLACEHOLDER.findall(word)


def substitute(word: str, values: Mapping[str, object]) -> str:
    """Replace the placeholders that have a value; others stay."""
    return _PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), word)
