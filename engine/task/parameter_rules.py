"""Rules of [[parameters]] that need no project: names, keys that exclude each other, shared targets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from engine.schema.task import Parameter
from engine.task.binding_rules import check_binding, identity
from engine.task.bindings.literal import describe
from engine.task.expression_syntax import KEYWORDS
from engine.task.place import Place
from engine.task.values import Literals

_MECHANISM = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*", re.ASCII)
_CONSTANTS = frozenset({"world_size", "nodes", "gpus_per_node"})


def check_entries(entries: list[tuple[Parameter, Place]]) -> None:
    """Check names, and that an entry is either searched or derived.

    Raises:
        TaskFileError: the first entry that breaks a rule.
    """
    seen: dict[str, str] = {}
    for entry, place in entries:
        here = place.at("mechanism")
        if not _MECHANISM.fullmatch(entry.mechanism) or entry.mechanism in KEYWORDS:
            raise here.error(
                "not a name", value=entry.mechanism, rule="letters, digits, _ - and ., no digit first"
            )
        if entry.mechanism in _CONSTANTS:
            raise here.error(
                "fixed by [allocation]", value=entry.mechanism, rule="a name that is no constant of the task"
            )
        if entry.mechanism in seen:
            raise here.error(
                f"already defined by {seen[entry.mechanism]}",
                value=entry.mechanism,
                rule="one [[parameters]] entry for each mechanism",
                hint="one entry can have several bindings",
            )
        seen[entry.mechanism] = place.key
        _check_either(entry, place)


def check_bindings(entries: list[tuple[Parameter, Place]], literals: Mapping[str, Literals]) -> None:
    """Check every binding by itself, and that no two write the same thing.

    Raises:
        TaskFileError: the first binding that breaks a rule.
    """
    seen: dict[str, str] = {}
    for entry, place in entries:
        written = list(literals.get(entry.mechanism, {}).values())
        for index, binding in enumerate(entry.bindings):
            here = place.at("bindings", index)
            check_binding(binding, written, here)
            target = identity(binding)
            if target in seen:
                raise here.error(
                    f"{describe(binding)} is already written by {seen[target]}",
                    rule="a key, flag, variable or constant belongs to one parameter",
                )
            seen[target] = here.key


def _check_either(entry: Parameter, place: Place) -> None:
    if entry.derived is None:
        if entry.values is None:
            raise place.at("values").error(
                "missing", rule="values = [ … ], { canonical = literal } or { min, max, step }; or derived"
            )
        return
    for key in ("values", "initial", "default"):
        value = getattr(entry, key)
        if value is not None:
            raise place.at(key).error(
                "a derived parameter is computed, not searched",
                value=value,
                rule=f"derived and {key} exclude each other",
                hint=f"remove {key}, or remove derived to search it",
            )
