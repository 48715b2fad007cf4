"""Load a task: the one door from infrarsi.toml to the engine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from engine.schema.task import TaskFile
from engine.task.baseline import Project
from engine.task.bindings.access import Assignment
from engine.task.bindings.write import Applied, write_assignments
from engine.task.parameters import build_space
from engine.task.paths import check_command, check_data, data_paths, interpreter, project_folder
from engine.task.place import Place
from engine.task.records import validate
from engine.task.scope_rules import check_scope
from engine.task.source import read_source
from engine.task.space import ParameterSpace


@dataclasses.dataclass(frozen=True)
class Task:
    """A task that was checked.

    file and project are absolute; `text` is the file as read; `python` the training interpreter (a bare name
    where the set-up lines provide it); `data` the absolute paths that are referenced in place; `warnings` are
    sentences for the user.
    """

    file: Path
    project: Path
    settings: TaskFile
    space: ParameterSpace
    text: str
    python: str
    data: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()

    def write(self, workdir: Path, assignments: Iterable[Assignment]) -> Applied:
        """Write values into a copy of the project.

        Returns:
            The command, the variables to set and those to remove.

        Raises:
            BindingError: a value cannot be written without touching other text.
            InfrastructureError: the disk refuses.
        """
        return write_assignments(assignments, workdir, self.settings.task.command)


def load_task(path: Path, env: Mapping[str, str] | None = None) -> Task:
    """Read and check a task file.

    Args:
        path: The file, or its folder.
        env: The environment that variables without a `default` are read from; None: this process's.

    Raises:
        TaskFileError: the first thing that is wrong, with file, dotted key, value, rule and a hint.
    """
    source = read_source(path)
    place = Place(str(source.file))
    settings = validate(source.data, place)
    folder = source.file.parent
    task_place = place.at("task")
    project = project_folder(settings.task, folder, task_place)
    python = interpreter(settings.task, folder, task_place)
    check_command(settings.task, project, task_place)
    check_data(settings.task, project, task_place)
    data = data_paths(settings.task, project)
    warnings = check_scope(settings.scope, project, place.at("scope"))
    bound = Project(project, settings.task.command, os.environ if env is None else env, data)
    space, notes = build_space(settings, bound, place)
    warnings += notes
    if not settings.parameters:
        warnings.append("no [[parameters]]: nothing is searched; only patches and the baseline can run")
    return Task(
        file=source.file,
        project=project,
        settings=settings,
        space=space,
        text=source.text,
        python=python,
        data=data,
        warnings=tuple(warnings),
    )
