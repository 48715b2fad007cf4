"""Small projects on disk, and patches made by git itself."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from engine.trial.project_listing import git_environment

TRAIN = "".join(f"line {number}\n" for number in range(1, 13))


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write texts below a folder."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")
    return root


def git(folder: Path, *arguments: str) -> str:
    """Run git without the settings of whoever runs the tests."""
    identity = ["-c", "user.name=t", "-c", "user.email=t@t", "-c", "commit.gpgsign=false"]
    done = subprocess.run(
        ["git", *identity, *arguments],
        cwd=folder,
        env=git_environment(GIT_CONFIG_GLOBAL="/dev/null", GIT_CONFIG_NOSYSTEM="1"),
        capture_output=True,
        check=True,
    )
    return done.stdout.decode("utf-8", "surrogateescape")


def make_repository(root: Path, files: dict[str, str]) -> Path:
    """A repository with everything committed."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "--quiet")
    write_files(root, files)
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "start")
    return root


def diff_of(root: Path, change: Callable[[Path], object]) -> str:
    """The patch of a change to a repository, which is taken back."""
    change(root)
    git(root, "add", "--all")
    text = git(root, "diff", "--cached", "-M", "HEAD")
    git(root, "reset", "--quiet", "--hard", "HEAD")
    return text
