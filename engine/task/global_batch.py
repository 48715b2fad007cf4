"""Where the global batch (samples per update over all ranks) is known from.

In this order: a parameter of that name; a value of that name in a file that a binding names, or in the
command; micro-batch, accumulation and data-parallel ranks of the baseline, multiplied.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple, TypeGuard

from engine.schema.base import Scalar
from engine.task.baseline import Project
from engine.task.bindings.access import load_document
from engine.task.bindings.document import dotted_keys
from engine.task.bindings.keypath import split_key

NAMES = ("global_batch", "global_batch_size", "train_batch_size")
_MODEL_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
HOW_TO_PROVIDE = (
    'add a parameter with this name and one value, e.g. mechanism = "global_batch", values = [256], '
    "bound to the key or flag that holds it"
)


class GlobalBatch(NamedTuple):
    """The global batch and where it was read."""

    samples: int
    source: str


def find_global_batch(
    project: Project, files: Iterable[str], held: Mapping[str, Scalar], world_size: int
) -> GlobalBatch | None:
    """The global batch, or None where nothing tells or two places disagree.

    Args:
        project: The project.
        files: The configuration files that bindings name.
        held: What the unchanged project holds for searched and derived parameters.
        world_size: Ranks.
    """
    found = [entry for file in files for entry in _in_file(project, file)] + _in_command(project.command)
    if found:
        return found[0] if len({entry.samples for entry in found}) == 1 else None
    micro, accumulation = held.get("micro_batch_size"), held.get("gradient_accumulation")
    if not _is_count(micro) or not _is_count(accumulation):
        return None
    ranks = world_size
    for name in _MODEL_PARALLEL:
        size = held.get(name, 1)
        if not _is_count(size) or ranks % size:
            return None
        ranks //= size
    source = (
        f"micro-batch {micro} x accumulation {accumulation} x {ranks} data-parallel ranks of the baseline"
    )
    return GlobalBatch(micro * accumulation * ranks, source)


def _in_file(project: Project, file: str) -> list[GlobalBatch]:
    values = dotted_keys(load_document(project.folder, file))
    return [
        GlobalBatch(value, f"{file}: {key}")
        for key, value in values.items()
        if _is_batch_name(split_key(key)[-1]) and _is_count(value)
    ]


def _in_command(command: list[str]) -> list[GlobalBatch]:
    found = []
    for word, following in zip(command, [*command[1:], ""], strict=True):
        flag, equals, value = word.partition("=")
        text = value if equals else following
        if flag.startswith("-") and _is_batch_name(flag.lstrip("-")) and text.isascii() and text.isdigit():
            found.append(GlobalBatch(int(text), f"flag {flag}"))
    return found


def _is_batch_name(name: str) -> bool:
    return name.casefold().replace("-", "_") in NAMES


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
