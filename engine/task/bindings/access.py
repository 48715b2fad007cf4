"""Reading and writing bound values, whatever kind the binding is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Protocol

from engine.schema.task import Binding, EnvBinding, FileBinding, FlagBinding, PythonBinding, Unset
from engine.task.bindings import flags, json_file, python_constant, toml_file, yaml_file
from engine.task.bindings.literal import UNSET, BindingError, Literal, same, same_text
from engine.task.bindings.text_file import TextFile, read_file


class Assignment(NamedTuple):
    """A literal to be written where a binding points."""

    binding: Binding
    literal: Literal | Unset


class _Format(Protocol):
    def read(self, file: TextFile, key: str) -> Literal | Unset: ...

    def write(self, file: TextFile, key: str, literal: Literal | Unset) -> str: ...


@dataclasses.dataclass(frozen=True)
class Target:
    """A value in a file: file, key, format, and the binding's field that names the file."""

    file: str
    key: str
    field: str
    format: _Format


class _Document(_Format, Protocol):
    def load(self, file: TextFile) -> Any: ...


_FORMATS: Mapping[str, _Document] = {
    ".toml": toml_file,
    ".yaml": yaml_file,
    ".yml": yaml_file,
    ".json": json_file,
}


def read_value(
    binding: Binding, project: Path, command: list[str], env: Mapping[str, str]
) -> Literal | Unset:
    """The literal that a binding holds, UNSET where it holds none.

    Args:
        binding: Where to look.
        project: The folder that file bindings are relative to.
        command: The training command.
        env: The environment of the training process.

    Raises:
        BindingError: the file, key, flag or constant is not there, or not readable.
    """
    if isinstance(binding, FlagBinding):
        return flags.read(command, binding)
    if isinstance(binding, EnvBinding):
        return env.get(binding.env, UNSET)
    target = target_of(binding)
    return target.format.read(read_file(project, target.file, target.field), target.key)


def matches(binding: Binding, found: Literal | Unset, literal: Literal | Unset) -> bool:
    """Whether what was found is what the literal stands for."""
    if isinstance(binding, FlagBinding) and binding.style in ("bare", "negatable"):
        absent = binding.style == "bare" and isinstance(literal, Unset | bool) and literal is not True
        return isinstance(found, Unset) if absent else same(found, literal)
    if isinstance(binding, FlagBinding | EnvBinding):
        return same_text(found, literal)
    return same(found, literal)


def load_document(project: Path, name: str) -> Any:
    """The data of a TOML, YAML or JSON file of the project.

    Raises:
        BindingError: the file is not there or not readable.
    """
    return _document(name).load(read_file(project, name))


def file_of(binding: Binding) -> str | None:
    """The project file that a binding writes to, in normal form; None for flags and variables."""
    if isinstance(binding, FileBinding):
        return str(PurePosixPath(binding.file))
    return str(PurePosixPath(binding.python)) if isinstance(binding, PythonBinding) else None


def target_of(binding: FileBinding | PythonBinding) -> Target:
    """The file, key and format behind a binding.

    Raises:
        BindingError: a file of a kind that is not understood.
    """
    if isinstance(binding, PythonBinding):
        return Target(binding.python, binding.name, "python", python_constant)
    return Target(binding.file, binding.key, "file", _document(binding.file))


def _document(name: str) -> _Document:
    suffix = Path(name).suffix.lower()
    if suffix not in _FORMATS:
        raise BindingError(
            "file",
            f"files ending in {suffix or 'nothing'} are not understood",
            value=name,
            rule="one of " + ", ".join(_FORMATS),
            hint="bind a flag or an environment variable instead",
        )
    return _FORMATS[suffix]
