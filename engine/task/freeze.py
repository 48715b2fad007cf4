"""The study's own copy of a task file: absolute paths, every baseline value written out."""

from __future__ import annotations

import tomllib
from pathlib import Path

import tomli_w

from engine.task.load import Task


def freeze_task(task: Task, project: Path) -> str:
    """The text of a task file that means the same from the study's folder, on any later day.

    The environment that some baseline values were read from may change, so they become `default`s.

    Args:
        task: The task as the user wrote it.
        project: The project's copy, absolute or relative to the file that the text goes to.
    """
    data = tomllib.loads(task.text)
    data["task"] |= {
        "project": str(project),
        "python": task.python,
        "data": [str(path) for path in task.data],
    }
    defaults = task.space.baseline()
    for parameter in data.get("parameters", []):
        if parameter["mechanism"] in defaults:
            parameter["default"] = defaults[parameter["mechanism"]]
    return tomli_w.dumps(data)
