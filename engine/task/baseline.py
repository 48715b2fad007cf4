"""What the unchanged project holds: reading parameters back through their bindings."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

from engine.errors import TaskFileError
from engine.schema.base import Scalar
from engine.schema.task import Binding, EnvBinding, FileBinding, Parameter, Unset
from engine.task.bindings.access import file_of, load_document, matches, read_value
from engine.task.bindings.document import dotted_keys
from engine.task.bindings.literal import BindingError, Literal, describe
from engine.task.expressions import scalar_text
from engine.task.nearest import did_you_mean
from engine.task.place import Place
from engine.task.values import Literals, one_of


@dataclasses.dataclass(frozen=True)
class Project:
    """Where bindings are read: folder, command, environment, and the data that no value may be written to."""

    folder: Path
    command: list[str]
    env: Mapping[str, str]
    data: tuple[Path, ...] = ()


def default_value(parameter: Parameter, literals: Literals, project: Project, place: Place) -> Scalar:
    """The baseline's canonical value: what the bindings hold, or `default`, which they must not contradict.

    Raises:
        TaskFileError: a binding holds none of the values, two of them disagree, one disagrees with
            `default`, or nothing tells.
    """
    agreed, source = None, "default"
    if parameter.default is not None:
        agreed = one_of(parameter.default, literals, place.at("default"))
    for index, binding in enumerate(parameter.bindings):
        here = place.at("bindings", index)
        found = _read(binding, project, here)
        if isinstance(binding, EnvBinding) and parameter.default is not None:
            continue  # the environment of whoever loads the task is no part of the project
        canonical = _canonical(binding, found, literals, project, here)
        if canonical is None and parameter.default is not None:
            continue
        if canonical is None:
            raise here.error(
                f"{describe(binding)} is not set, so the baseline's value is not known",
                rule="it is set, or `default` is given, or one value is { unset = true }",
                hint=f"add the value that the script uses, e.g. default = {_shown(next(iter(literals)))}",
            )
        if agreed is not None and canonical != agreed:
            raise here.error(
                f"{describe(binding)} holds {_shown(found)}, that is {scalar_text(canonical)}, "
                f"but {source} says {scalar_text(agreed)}",
                value=found,
                rule="bindings of one parameter and its `default` agree",
                hint="the baseline is the project as it is: correct the project or leave `default` out",
            )
        agreed, source = canonical, describe(binding)
    if agreed is None:
        raise place.error("nothing tells the baseline's value", rule="at least one binding")
    return agreed


def check_exists(binding: Binding, project: Project, place: Place) -> None:
    """Check that a derived parameter's binding points at something.

    Raises:
        TaskFileError: the file, key or constant does not exist or cannot be read.
    """
    if isinstance(_read(binding, project, place), Unset) and isinstance(binding, FileBinding):
        raise _missing_key(binding, project, place)


def check_derived(value: Scalar, binding: Binding, project: Project, place: Place) -> None:
    """Check that the project holds what a derived parameter computes for the baseline.

    Raises:
        TaskFileError: it holds something else.
    """
    found = _read(binding, project, place)
    if isinstance(found, Unset) or isinstance(binding, EnvBinding):
        return
    if not matches(binding, found, value):
        raise place.error(
            f"{describe(binding)} holds {_shown(found)}, but the expression gives {scalar_text(value)}",
            value=found,
            rule="for the baseline, a derived value is what the project holds",
            hint="correct the expression or the project",
        )


def _read(binding: Binding, project: Project, place: Place) -> Literal | Unset:
    try:
        found = read_value(binding, project.folder, project.command, project.env)
    except BindingError as error:
        here, hint = place.at(error.field), error.hint
        if error.field in ("file", "python") and hint is None:
            hint = _nearest_file(str(error.value), project)
        raise here.error(error.message, value=error.value, rule=error.rule, hint=hint) from error
    file = file_of(binding)
    if file is not None and any((project.folder / file).is_relative_to(path) for path in project.data):
        raise place.error(
            "lies in a data path, which all trials share",
            value=file,
            rule="a bound file is no part of [task] data",
        )
    return found


def _canonical(
    binding: Binding, found: Literal | Unset, literals: Literals, project: Project, place: Place
) -> Scalar | None:
    """The canonical value of what was found; None for a flag or variable that is absent."""
    for canonical, literal in literals.items():
        if matches(binding, found, literal):
            return canonical
    if isinstance(found, Unset):
        if isinstance(binding, FileBinding):
            raise _missing_key(binding, project, place)
        return None
    listed = [_shown(literal) for literal in literals.values()]
    raise place.error(
        f"{describe(binding)} holds {_shown(found)}, which is none of the values",
        value=found,
        rule="the baseline is one of: " + ", ".join(listed[:20]) + (", …" if len(listed) > 20 else ""),
        hint=f"add {_shown(found)} to `values`",
    )


def _missing_key(binding: FileBinding, project: Project, place: Place) -> TaskFileError:
    keys = dotted_keys(load_document(project.folder, binding.file))
    return place.at("key").error(
        f"{binding.file} has no such key",
        value=binding.key,
        rule="an existing key, or one of the values is { unset = true }",
        hint=did_you_mean(binding.key, keys),
    )


def _nearest_file(name: str, project: Project) -> str | None:
    folder = (project.folder / name).parent
    if not folder.is_dir() or not folder.resolve().is_relative_to(project.folder.resolve()):
        return None
    names = [str(path.relative_to(project.folder)) for path in sorted(folder.iterdir()) if path.is_file()]
    return did_you_mean(name, names)


def _shown(literal: Literal | Unset) -> str:
    if isinstance(literal, Unset):
        return "nothing"
    return repr(literal) if isinstance(literal, str | list | dict) else scalar_text(literal)
