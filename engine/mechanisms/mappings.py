"""How the frameworks spell the mechanisms."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from engine.mechanisms.columns import MAPPINGS_FILE, mapping_schema, read_table, row_error
from engine.mechanisms.location import store_folder

KeyKind = Literal["config", "cli", "env", "kwarg", "api"]
_ENGINE_MARK = "engine="


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """One key of one framework that sets one mechanism.

    Attributes:
        key_kind: config = a key of a configuration file, cli = a switch, env = a variable; kwarg, api = code.
        template: Canonical value as text → literal to write. JSON true/false on a switch = pass or omit it,
            null = leave unset, a list = alternatives with the same meaning, {…} = an expression to fill in,
            "*" = every value.
        verified: path:line in the framework's own source, at `framework_version`.
        engine: Engine of a framework that has several (`swift sft`), else None.
    """

    mechanism: str
    framework: str
    framework_version: str
    key: str
    key_kind: KeyKind
    template: Mapping[str, Any]
    verified: str
    notes: str
    engine: str | None


def load_mappings(framework: str | None = None, path: Path | None = None) -> tuple[KeyMapping, ...]:
    """Rows of the mapping table, in its order.

    Args:
        framework: Only this framework's rows; default: all.
        path: Another mechanism_mappings.parquet; default: the shipped one.

    Raises:
        IntegrityError: the file is missing or does not hold what it must; names it and the next step.
    """
    rows = _load(path or store_folder() / MAPPINGS_FILE)
    return rows if framework is None else tuple(row for row in rows if row.framework == framework)


@functools.cache
def _load(path: Path) -> tuple[KeyMapping, ...]:
    frame = read_table(path, mapping_schema())
    return tuple(_mapping(path, index, row) for index, row in enumerate(frame.iter_rows(named=True), start=1))


def _mapping(path: Path, index: int, row: Mapping[str, Any]) -> KeyMapping:
    where = f"row {index} ({row['framework']} {row['key']})"
    if row["key_kind"] not in get_args(KeyKind):
        raise row_error(
            path, where, f"key_kind {row['key_kind']!r} is none of {', '.join(get_args(KeyKind))}"
        )
    try:
        template = json.loads(row["value_template"])
    except json.JSONDecodeError as error:
        raise row_error(path, where, f"value_template is no JSON: {error}") from error
    if not isinstance(template, dict):
        raise row_error(path, where, "value_template is no JSON object")
    notes: str = row["notes"]
    engine = (
        notes.removeprefix(_ENGINE_MARK).partition(";")[0].strip() if notes.startswith(_ENGINE_MARK) else None
    )
    return KeyMapping(
        mechanism=row["mechanism_id"],
        framework=row["framework"],
        framework_version=row["framework_version"],
        key=row["key"],
        key_kind=row["key_kind"],
        template=MappingProxyType(template),
        verified=row["verified"],
        notes=notes,
        engine=engine,
    )
