"""Paths of a task: project, interpreter, data, script; all must be there."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from engine.schema.task import TaskSection
from engine.task.nearest import did_you_mean
from engine.task.place import Place
from engine.task.placeholders import PLACEHOLDERS, placeholders_in


def project_folder(task: TaskSection, folder: Path, place: Place) -> Path:
    """The project's absolute folder.

    Raises:
        TaskFileError: it is no folder.
    """
    project = Path(os.path.abspath(folder / Path(_clean(task.project, place.at("project"))).expanduser()))
    if not project.is_dir():
        what = "not a folder" if project.exists() else "no such folder"
        raise place.at("project").error(
            f"{what}: {project}", value=task.project, rule="the project's folder, relative to this file"
        )
    return project


def interpreter(task: TaskSection, folder: Path, place: Place) -> str:
    """The training interpreter: a path, or a bare name that the set-up lines put on the PATH.

    Links are kept: a virtual environment's python is one.

    Raises:
        TaskFileError: it is not there or cannot be executed.
    """
    place = place.at("python")
    if task.python is None:
        return sys.executable
    name = _clean(task.python, place)
    if "/" not in name and not name.startswith("~"):
        found = shutil.which(name)
        if found is None and not task.setup:
            raise place.error(
                "no such program on the PATH", value=name, rule="an interpreter of this machine"
            )
        return name if task.setup or found is None else found
    path = os.path.abspath(folder / Path(name).expanduser())
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        what = "cannot be executed" if os.path.exists(path) else "no such interpreter"
        raise place.error(
            f"{what}: {path}", value=name, rule="an executable Python, absolute or relative to this file"
        )
    return path


def check_data(task: TaskSection, project: Path, place: Place) -> None:
    """Check the data paths: there, and either absolute or inside the project.

    Raises:
        TaskFileError: a path is missing, is the project itself, or climbs out of it.
    """
    for index, name in enumerate(task.data):
        here = place.at("data", index)
        given = Path(_clean(name, here)).expanduser()
        path = Path(os.path.abspath(project / given))
        if not given.is_absolute() and not path.is_relative_to(project):
            raise here.error(
                "a relative path out of the project points elsewhere in a trial's copy",
                value=name,
                rule="an absolute path, or one inside the project",
                hint=f"write {str(path)!r}, in the training script's configuration too",
            )
        if project.is_relative_to(path):
            raise here.error("contains the project itself", value=name, rule="a file or folder of data")
        if not path.exists():
            raise here.error(
                f"no such file or folder: {path}",
                value=name,
                rule="data is there before the study starts",
                hint="relative paths start at the project",
            )


def data_paths(task: TaskSection, project: Path) -> tuple[Path, ...]:
    """The data paths, absolute, links not followed."""
    return tuple(Path(os.path.abspath(project / Path(name).expanduser())) for name in task.data)


def check_command(task: TaskSection, project: Path, place: Place) -> None:
    """Check the command's placeholders and that a script named by a path is there.

    Raises:
        TaskFileError: an unknown placeholder, an empty word first, or a missing script.
    """
    for index, word in enumerate(task.command):
        here = place.at("command", index)
        _clean(word, here, may_be_empty=index > 0)
        for name in placeholders_in(word):
            if name not in PLACEHOLDERS:
                raise here.error(
                    f"unknown placeholder {{{name}}}",
                    value=word,
                    rule=" ".join(f"{{{known}}}" for known in PLACEHOLDERS),
                    hint=did_you_mean(name, PLACEHOLDERS),
                )
    script = task.command[0]
    if script.endswith((".py", ".sh")) and not (project / script).is_file():
        scripts = [path.name for path in sorted(project.glob(f"*{Path(script).suffix}"))]
        raise place.at("command", 0).error(
            f"no such script: {project / script}",
            value=script,
            rule="a script, relative to the project",
            hint=did_you_mean(script, scripts) if scripts else None,
        )


def _clean(text: str, place: Place, *, may_be_empty: bool = False) -> str:
    if "\0" in text or not (text.strip() or may_be_empty):
        raise place.error(
            "empty, or holds a NUL character", value=text, rule="a text with at least one letter"
        )
    return text
