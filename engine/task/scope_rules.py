"""Rules of [scope]: globs that are sound and do not contradict each other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from engine.schema.task import ScopeSection
from engine.task.globs import glob_problem, matches_any
from engine.task.place import Place

MAX_FILES = 20_000
_SKIPPED = frozenset({".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules"})


def check_scope(scope: ScopeSection, project: Path, place: Place) -> list[str]:
    """Check the globs; no file may be editable and locked.

    Returns:
        Warnings: globs that cover no file of the project.

    Raises:
        TaskFileError: a glob that leaves the project, or a file that is both.
    """
    for key, patterns in (("editable", scope.editable), ("locked", scope.locked)):
        for index, pattern in enumerate(patterns):
            problem = glob_problem(pattern)
            if problem is not None:
                raise place.at(key, index).error(
                    f"the glob is {problem}"
                    if problem != "leaves the project"
                    else "the glob leaves the project",
                    value=pattern,
                    rule="a glob relative to the project, e.g. src/**/*.py",
                )
            if key == "editable" and pattern in scope.locked:
                raise _both(pattern, pattern, place.at(key, index))
    files = list(project_files(project)) if scope.editable or scope.locked else []
    for index, pattern in enumerate(scope.editable):
        both = next(
            (file for file in files if matches_any(file, [pattern]) and matches_any(file, scope.locked)), None
        )
        if both is not None:
            raise _both(both, pattern, place.at("editable", index))
    return [
        f"{place.at(key, index).key}: {pattern!r} covers no file of the project"
        for key, patterns in (("editable", scope.editable), ("locked", scope.locked))
        for index, pattern in enumerate(patterns)
        if len(files) < MAX_FILES and not any(matches_any(file, [pattern]) for file in files)
    ]


def project_files(project: Path) -> Iterator[str]:
    """Files of the project, relative, caches left out; at most MAX_FILES."""
    count = 0
    for folder, folders, files in os.walk(project):
        folders[:] = sorted(name for name in folders if name not in _SKIPPED)
        for name in sorted(files):
            yield Path(folder, name).relative_to(project).as_posix()
            count += 1
            if count == MAX_FILES:
                return


def _both(file: str, pattern: str, place: Place) -> Exception:
    return place.error(
        f"{file} is editable and locked",
        value=pattern,
        rule="editable and locked have no file in common",
        hint="take the file out of one of them",
    )
