"""What patches may touch, before a run; what has changed, after it."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from engine.task.globs import matches_any
from engine.trial.file_tree import FileEntry, Manifest, scan

_TASK_FILE = "infrarsi.toml"


@dataclasses.dataclass(frozen=True)
class Violation:
    """A file that was touched against the task's scope."""

    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.reason}"


@dataclasses.dataclass(frozen=True)
class ScopeReport:
    """What differs between the prepared folder and the folder after the run.

    violations: files of the project that were changed, deleted, or became something else, and new links that
    lead out. created: new files (compiled modules, logs), which are no violations.
    """

    violations: tuple[Violation, ...]
    created: tuple[str, ...]


def check_patch_scope(
    paths: Iterable[str], editable: Collection[str], locked: Collection[str], bound_files: Collection[str]
) -> list[Violation]:
    """Check the paths that patches touch.

    Configuration files that parameters are bound to, and the task file, are editable only where `editable`
    names them literally; Python files with bound constants follow the globs.
    """
    violations = []
    guarded = {file for file in bound_files if not file.endswith(".py")}
    for path in dict.fromkeys(paths):
        if matches_any(path, list(locked)):
            violations.append(Violation(path, "locked by [scope] locked"))
        elif path.rpartition("/")[2] == _TASK_FILE:
            violations.append(Violation(path, "the task file belongs to no patch"))
        elif not matches_any(path, list(editable)):
            listed = ", ".join(editable) or "nothing"
            violations.append(Violation(path, f"not editable; [scope] editable allows {listed}"))
        elif path in guarded and path not in editable:
            violations.append(
                Violation(
                    path, "holds bound parameters; name it literally in [scope] editable to allow patches"
                )
            )
    return violations


def changed_paths(before: Manifest, after: Manifest) -> tuple[str, ...]:
    """Paths that were added, removed or changed."""
    paths = before.keys() | after.keys()
    return tuple(sorted(path for path in paths if not _is_same(before.get(path), after.get(path))))


def inspect(workdir: Path, prepared: Manifest) -> ScopeReport:
    """Compare a folder after the run with what was prepared.

    Raises:
        OSError: the folder cannot be read.
    """
    after = scan(workdir)
    violations, created = [], []
    for path in changed_paths(prepared, after):
        old, new = prepared.get(path), after.get(path)
        if old is None and new is not None:
            if new.target is not None and _leaves(workdir, path):
                violations.append(Violation(path, f"the run made a link out of the project, to {new.target}"))
            else:
                created.append(path)
        elif old is not None:
            violations.append(Violation(path, _difference(old, new)))
    return ScopeReport(tuple(violations), tuple(created))


def _is_same(old: FileEntry | None, new: FileEntry | None) -> bool:
    if old is None or new is None:
        return old is new
    return (old.kind, old.sha256, old.mode & 0o111) == (new.kind, new.sha256, new.mode & 0o111)


def _difference(old: FileEntry, new: FileEntry | None) -> str:
    if new is None:
        return "deleted by the run"
    if new.kind != old.kind:
        return f"the run replaced a {old.kind} by a {new.kind}"
    if new.sha256 != old.sha256:
        return "changed by the run"
    return f"the run changed its mode from {old.mode:o} to {new.mode:o}"


def _leaves(workdir: Path, path: str) -> bool:
    root = os.path.realpath(workdir)
    return not Path(os.path.realpath(workdir / path)).is_relative_to(root)
