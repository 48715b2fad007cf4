"""Writing values: into a copy of the project, the command, the environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from engine.schema.base import Scalar
from engine.schema.task import EnvBinding, FlagBinding, Unset
from engine.task.bindings import flags
from engine.task.bindings.access import Assignment, Target, matches, target_of
from engine.task.bindings.literal import text_of
from engine.task.bindings.text_file import TextFile, read_file, replace_text
from engine.task.space import ParameterSpace


class Applied(NamedTuple):
    """What a trial is started with after its values were written."""

    command: list[str]
    env: dict[str, str]
    unset: list[str]


def write_values(
    space: ParameterSpace, configuration: Mapping[str, Scalar], project: Path | None, command: list[str]
) -> Applied:
    """Write a configuration, derived values included, into a copy of the project.

    Args:
        space: The task's parameter space.
        configuration: Mechanism to canonical value; what is missing is at its default.
        project: The copy; None leaves files alone and computes command and environment only.
        command: The task's command.

    Raises:
        TaskFileError: an unknown parameter or value.
        ExpressionError: a derived value cannot be computed.
        BindingError: a value cannot be written without touching other text.
        InfrastructureError: the disk refuses.
    """
    return write_assignments(space.assignments(configuration), project, command)


def write_assignments(assignments: Iterable[Assignment], project: Path | None, command: list[str]) -> Applied:
    """Write literals where their bindings point, each file once and atomically.

    What holds its value already keeps its spelling; without a change a file is not touched at all.

    Raises:
        BindingError: a value cannot be written without touching other text.
        InfrastructureError: the disk refuses.
    """
    applied = Applied(list(command), {}, [])
    edited: dict[tuple[str, str], tuple[TextFile, str]] = {}
    for binding, literal in assignments:
        if isinstance(binding, FlagBinding):
            if not matches(binding, flags.read(applied.command, binding), literal):
                applied.command[:] = flags.write(applied.command, binding, literal)
        elif isinstance(binding, EnvBinding):
            if isinstance(literal, Unset):
                applied.unset.append(binding.env)
            else:
                applied.env[binding.env] = text_of(literal)
        elif project is not None:
            target = target_of(binding)
            place = (target.file, target.field)
            original, text = edited.get(place) or _opened(project, target)
            current = dataclasses.replace(original, text=text)
            if not matches(binding, target.format.read(current, target.key), literal):
                text = target.format.write(current, target.key, literal)
            edited[place] = (original, text)
    for (_, field), (original, text) in edited.items():
        if project is not None:
            replace_text(project, original, text, field)
    return applied


def _opened(project: Path, target: Target) -> tuple[TextFile, str]:
    file = read_file(project, target.file, target.field)
    return file, file.text
