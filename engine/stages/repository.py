"""The target of a deployment: a git working tree, changed only through a new branch."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InfrastructureError, UsageError
from engine.trial.project_listing import git_environment

GIT_TIMEOUT_S = 120.0
_FALLBACK_IDENTITY = ("-c", "user.name=infrarsi", "-c", "user.email=infrarsi@localhost")


@dataclass(frozen=True)
class Repository:
    """A project folder inside a git working tree; `prefix` is its path from the tree's top."""

    folder: Path
    prefix: str

    @classmethod
    def at(cls, folder: Path) -> Repository:
        """Find the working tree that holds a folder.

        Raises:
            UsageError: the folder is in no git working tree.
        """
        try:
            prefix = git(folder, "rev-parse", "--show-prefix").strip()
        except InfrastructureError as error:
            raise UsageError(
                "the target is not in a git working tree",
                key="--to",
                value=str(folder),
                hint="`git init` and commit the project first, or name a folder that does not exist yet",
            ) from error
        return cls(folder.resolve(), prefix)

    @classmethod
    def create(cls, folder: Path) -> Repository:
        """Start a repository with everything that lies in a folder as its first commit."""
        git(folder, "init", "--quiet")
        commit_all(folder, "Add the project as it was measured")
        return cls(folder.resolve(), "")

    def dirty_files(self) -> list[str]:
        """Tracked files with uncommitted changes and untracked files that git does not ignore."""
        lines = git(self.folder, "status", "--porcelain", "--", ".").splitlines()
        return [line[3:] for line in lines]

    def way_back(self) -> str:
        """What `git switch` needs to come back here: the branch, or the commit when none is checked out."""
        branch = git(self.folder, "branch", "--show-current").strip()
        return branch or f"--detach {git(self.folder, 'rev-parse', 'HEAD').strip()}"

    def has_branch(self, branch: str) -> bool:
        """Whether a branch exists."""
        return bool(git(self.folder, "branch", "--list", branch).strip())

    def last_commits(self, branch: str, count: int) -> tuple[str, ...]:
        """The last commits of a branch, oldest first; none where it has no commit before them."""
        if count == 0:
            return ()
        log = git(self.folder, "rev-list", f"--max-count={count + 1}", branch).split()
        return tuple(reversed(log[:count])) if len(log) > count else ()

    def same_files(self, one: str, other: str) -> bool:
        """Whether two commits hold the same files."""
        return not git(self.folder, "diff", "--name-only", one, other).strip()

    @contextlib.contextmanager
    def scratch_tree(self, commit: str = "HEAD") -> Iterator[Path]:
        """A detached working tree at a commit; yields the project's folder in it, removes it at the end."""
        with tempfile.TemporaryDirectory(prefix="infrarsi-deploy-") as scratch:
            tree = Path(scratch) / "tree"
            git(self.folder, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            try:
                yield tree / self.prefix
            finally:
                git(self.folder, "worktree", "remove", "--force", str(tree))


def commit_all(folder: Path, message: str) -> str:
    """Commit everything under a folder.

    Returns:
        The commit's hash, '' when there was nothing to commit.
    """
    git(folder, "add", "--all", "--", ".")
    if not git(folder, "status", "--porcelain", "--", ".").strip():
        return ""
    identity = () if _has_identity(folder) else _FALLBACK_IDENTITY
    git(folder, *identity, "commit", "--quiet", "--no-verify", "--message", message)
    return git(folder, "rev-parse", "HEAD").strip()


def git(folder: Path, *arguments: str) -> str:
    """Run git in a folder.

    Raises:
        InfrastructureError: git refused, in git's own words.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=folder,
            env=git_environment(),
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InfrastructureError(f"git could not be run: {error}", file=str(folder)) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip()
        raise InfrastructureError(f"`git {arguments[0]}` failed: {said}", file=str(folder))
    return done.stdout


def _has_identity(folder: Path) -> bool:
    try:
        return bool(git(folder, "config", "user.email").strip())
    except InfrastructureError:
        return False
