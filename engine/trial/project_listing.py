"""Which files make up a project: what git lists, or without git everything that is no cache."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple

GIT_TIMEOUT_S = 60.0
_CACHES = frozenset(
    {".git", ".hg", ".svn", ".venv", "__pycache__", "node_modules", ".tox", ".nox", ".eggs"}
    | {".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints", ".cache"}
)


class Listing(NamedTuple):
    """Paths relative to the project (`/` between parts), sorted, and how they were found."""

    paths: tuple[str, ...]
    source: Literal["git", "walk"]


def list_project(project: Path) -> Listing:
    """List a project's files and links.

    With git: tracked files, and untracked ones that git does not ignore and that lie in no cache folder.
    Nested repositories are listed by their own rules.
    """
    listed = _listed_by_git(project)
    if listed:
        return Listing(tuple(sorted(listed)), "git")
    return Listing(tuple(sorted(_walk(project))), "walk")


def git_environment(**extra: str) -> dict[str, str]:
    """The environment for a git process: nothing of an enclosing git command, English messages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    return {**kept, "LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", **extra}


def _listed_by_git(project: Path) -> set[str] | None:
    """What git lists, None where git is missing or this is no repository."""
    tracked = _git_paths(project, "--cached")
    untracked = _git_paths(project, "--others", "--exclude-standard")
    if tracked is None or untracked is None:
        return None
    found: set[str] = set()
    for path in tracked | {path for path in untracked if not _in_cache(project, path)}:
        full = project / path
        if full.is_dir() and not full.is_symlink():  # a submodule, or another repository inside
            nested = path.rstrip("/")
            found |= {f"{nested}/{inner}" for inner in list_project(full).paths}
        elif os.path.lexists(full):
            found.add(path)
    return found


def _git_paths(project: Path, *options: str) -> set[str] | None:
    command = ["git", "-c", "core.fsmonitor=false", "-c", "safe.directory=*", "ls-files", "-z", *options]
    try:
        done = subprocess.run(
            command,
            cwd=project,
            env=git_environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return {os.fsdecode(name) for name in done.stdout.split(b"\0") if name}


def _in_cache(project: Path, path: str) -> bool:
    parts = path.rstrip("/").split("/")
    folders = parts if path.endswith("/") else parts[:-1]
    return any(
        name in _CACHES or _is_marked(project.joinpath(*folders[: index + 1]))
        for index, name in enumerate(folders)
    )


def _is_marked(folder: Path) -> bool:
    """Whether a folder says of itself that it is a virtual environment or a cache."""
    if (folder / "pyvenv.cfg").exists() or (folder / "CACHEDIR.TAG").exists():
        return True
    try:
        return (folder / ".gitignore").read_bytes().strip() == b"*"
    except OSError:
        return False


def _walk(project: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(project):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        folders[:] = [
            name
            for name in folders
            if name not in _CACHES and name not in links and not _is_marked(Path(folder, name))
        ]
        for name in files + links:
            yield Path(folder, name).relative_to(project).as_posix()
