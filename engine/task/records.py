"""From parsed TOML to records: every wrong key, type or value becomes one error that says where and what."""

from __future__ import annotations

import typing
from typing import Any

import pydantic
from pydantic_core import ErrorDetails

from engine.errors import TaskFileError
from engine.schema.base import Record
from engine.schema.task import Binding, EnvBinding, FileBinding, FlagBinding, PythonBinding, TaskFile
from engine.task.nearest import did_you_mean
from engine.task.place import Place

_BINDINGS: dict[str, type[FileBinding | FlagBinding | EnvBinding | PythonBinding]] = {
    "file": FileBinding,
    "flag": FlagBinding,
    "env": EnvBinding,
    "python": PythonBinding,
}
_BINDING_RULE = "{ file, key }, { flag, style }, { env } or { python, name }"
_TYPES = {
    bool: "a boolean",
    int: "an integer",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
}
_RULES = {
    "int_type": "an integer",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list [ … ]",
    "dict_type": "a table { … }",
    "model_type": "a table",
    "model_attributes_type": "a table",
    "finite_number": "a finite number",
}


def validate(data: dict[str, Any], place: Place) -> TaskFile:
    """Check a parsed task file against the records.

    Raises:
        TaskFileError: the first thing that is wrong; unknown keys before missing ones, as a missing key is
            mostly a misspelt one.
    """
    parameters = data.get("parameters")
    if isinstance(parameters, list):
        _reject_unknown_sections(data, place)
        data = data | {
            "parameters": [
                _with_bindings(entry, place.at("parameters", index)) for index, entry in enumerate(parameters)
            ]
        }
    try:
        return TaskFile.model_validate(data, strict=True)
    except pydantic.ValidationError as error:
        raise _first_error(error, TaskFile, data, place) from error


def _reject_unknown_sections(data: dict[str, Any], place: Place) -> None:
    for key in data:
        if key not in TaskFile.model_fields:
            raise place.at(key).error("unknown section", rule=_keys_rule(TaskFile), hint=_hint(key, TaskFile))


def _with_bindings(entry: object, place: Place) -> object:
    """One [[parameters]] table with its bindings turned into records."""
    if not isinstance(entry, dict) or not isinstance(entry.get("bindings"), list):
        return entry
    bindings = [_binding(item, place.at("bindings", i)) for i, item in enumerate(entry["bindings"])]
    return entry | {"bindings": bindings}


def _binding(data: object, place: Place) -> Binding:
    if not isinstance(data, dict):
        raise place.error(f"{_kind(data)} is no binding", value=data, rule=_BINDING_RULE)
    kinds = [kind for kind in _BINDINGS if kind in data]
    if len(kinds) != 1:
        message = (
            f"{' and '.join(kinds)} exclude each other"
            if kinds
            else "says neither file, flag, env nor python"
        )
        hint = None if kinds or not data else did_you_mean(next(iter(data)), _BINDINGS)
        raise place.error(message, value=data, rule=_BINDING_RULE, hint=hint)
    record = _BINDINGS[kinds[0]]
    try:
        return record.model_validate(data, strict=True)
    except pydantic.ValidationError as error:
        raise _first_error(error, record, data, place) from error


def _first_error(
    error: pydantic.ValidationError, record: type[Record], data: dict[str, Any], place: Place
) -> TaskFileError:
    details = error.errors(include_url=False)
    unknown = [detail for detail in details if detail["type"] == "extra_forbidden"]
    chosen = (unknown or details)[0]
    where = _real_location(chosen["loc"], data)
    for detail in details if not unknown else ():  # of the branches of a union, the one that came furthest
        deeper = _real_location(detail["loc"], data)
        if len(deeper) > len(where) and deeper[: len(where)] == where:
            chosen, where = detail, deeper
    return _explain(chosen, record, data, place)


def _explain(detail: ErrorDetails, record: type[Record], data: dict[str, Any], place: Place) -> TaskFileError:
    location = _real_location(detail["loc"], data)
    target = place.at(*location)
    owner = _owner(record, location)
    if detail["type"] == "extra_forbidden":
        key = location[-1]
        message = "unknown section" if owner is TaskFile else "unknown key"
        return target.error(message, value=detail["input"], rule=_keys_rule(owner), hint=_hint(key, owner))
    if detail["type"] == "missing":
        return target.error("missing", rule="this key is required", hint=_description(owner, location[-1]))
    if detail["type"] == "literal_error":
        rule = f"one of {detail.get('ctx', {}).get('expected')}"
        hint = did_you_mean(detail["input"], _options(owner, location[-1]))
        return target.error("not one of the choices", value=detail["input"], rule=rule, hint=hint)
    rule = _RULES.get(detail["type"], detail["msg"].removeprefix("Input should be "))
    message = f"must be {rule}" + (f", not {_kind(detail['input'])}" if detail["type"] in _RULES else "")
    description = _description(owner, location[-1]) if location else None
    return target.error(message, value=detail["input"], rule=rule, hint=description)


def _real_location(location: tuple[int | str, ...], data: Any) -> tuple[int | str, ...]:
    """The location without the union tags that pydantic puts in: only what is a key of the file stays."""
    real: list[int | str] = []
    for index, part in enumerate(location):
        if isinstance(data, Record):
            data = data.model_dump()
        exists = (isinstance(data, dict) and part in data) or (
            isinstance(data, list) and isinstance(part, int) and part < len(data)
        )
        if exists:
            data = data[part]
        elif not isinstance(data, dict) or index < len(location) - 1:
            continue
        real.append(part)
    return tuple(real)


def _owner(record: type[Record], location: tuple[int | str, ...]) -> type[Record]:
    """The record that the last key of a location belongs to."""
    for part in location[:-1]:
        field = record.model_fields.get(str(part))
        if field is None:
            continue
        nested = [field.annotation, *typing.get_args(field.annotation)]
        for candidate in nested:
            if isinstance(candidate, type) and issubclass(candidate, Record):
                record = candidate
    return record


def _options(owner: type[Record], key: int | str) -> list[str]:
    field = owner.model_fields.get(str(key))
    found = [] if field is None else [field.annotation, *typing.get_args(field.annotation)]
    return [str(option) for item in found for option in typing.get_args(item) if isinstance(option, str)] or [
        str(item) for item in found if isinstance(item, str)
    ]


def _description(owner: type[Record], key: int | str) -> str | None:
    field = owner.model_fields.get(str(key))
    return field.description if field is not None else None


def _keys_rule(owner: type[Record]) -> str:
    return "valid keys: " + ", ".join(owner.model_fields)


def _hint(key: int | str, owner: type[Record]) -> str:
    return did_you_mean(key, owner.model_fields)


def _kind(value: object) -> str:
    return _TYPES.get(type(value), f"a {type(value).__name__}")
