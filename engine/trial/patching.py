"""Applying patches with the semantics of `git apply`: all of a patch or nothing of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from engine.trial.file_tree import is_utf8
from engine.trial.patch_text import PatchedFile, PatchSyntaxError, read_files
from engine.trial.project_listing import git_environment

GIT_TIMEOUT_S = 60.0
MAX_PATCH_BYTES = 8 << 20


@dataclasses.dataclass(frozen=True)
class Patch:
    """A unified diff that is allowed to be applied."""

    text: str
    files: tuple[PatchedFile, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every path that is touched, before and after renames, without repeats."""
        return tuple(dict.fromkeys(path for file in self.files for path in file.paths))


@dataclasses.dataclass(frozen=True)
class PatchFailure:
    """Why a patch was not applied; nothing was changed.

    kind: `refused` (its content is not allowed), `malformed` (no unified diff), `conflict` (it does not fit
    the files), `tool` (git itself is missing or hangs: not the patch's fault). reason holds git's own words.
    """

    kind: Literal["refused", "malformed", "conflict", "tool"]
    reason: str


def parse_patch(text: str) -> Patch | PatchFailure:
    """Read a patch and refuse what is never applied: binaries, links, submodules, ways out of the project."""
    if len(text) > MAX_PATCH_BYTES:
        return PatchFailure("refused", f"the patch is larger than {MAX_PATCH_BYTES >> 20} MiB")
    try:
        patch = Patch(text, tuple(read_files(text)))
    except PatchSyntaxError as error:
        kind: Literal["refused", "malformed"] = "refused" if "refused" in str(error) else "malformed"
        return PatchFailure(kind, str(error))
    for path in patch.paths:
        problem = _path_problem(path)
        if problem is not None:
            return PatchFailure("refused", f"{path!r}: {problem}")
    return patch


def apply_patch(workdir: Path, text: str) -> PatchFailure | None:
    """Apply a patch to a folder, whether it is a repository, lies in one, or neither.

    Returns:
        None when it was applied, else why not; then no file has changed.
    """
    patch = parse_patch(text)
    if isinstance(patch, PatchFailure):
        return patch
    listed = _git_apply(workdir, text, ["--numstat", "-z"])
    if isinstance(listed, PatchFailure):
        return listed
    seen = {os.fsdecode(line.split(b"\t", 2)[2]) for line in listed.split(b"\0") if line.count(b"\t") >= 2}
    expected = {file.new if file.new is not None else file.old for file in patch.files}
    if seen != expected:
        return PatchFailure("refused", "git reads other file names in the patch than are written in it")
    for path in patch.paths:
        problem = _link_problem(workdir, path)
        if problem is not None:
            return PatchFailure("refused", f"{path!r}: {problem}")
    for options in (["--check"], []):
        done = _git_apply(workdir, text, options)
        if isinstance(done, PatchFailure):
            return done
    return None


def apply_patches(workdir: Path, texts: Sequence[str]) -> PatchFailure | None:
    """Apply patches on top of each other, up to the first that fails; the folder is then to be discarded."""
    for index, text in enumerate(texts):
        failure = apply_patch(workdir, text)
        if failure is not None:
            return dataclasses.replace(failure, reason=f"patch {index + 1}: {failure.reason}")
    return None


def _git_apply(workdir: Path, text: str, options: Sequence[str]) -> bytes | PatchFailure:
    """Run `git apply` as if the folder were alone in the world.

    The ceiling hides an enclosing repository: inside one, git would silently skip files outside its folder.
    """
    root = workdir.resolve()
    environment = git_environment(
        GIT_CEILING_DIRECTORIES=str(root.parent), GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull
    )
    try:
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", *options, "-"],
            cwd=root,
            env=environment,
            input=text.encode("utf-8", "surrogateescape"),
            capture_output=True,
            timeout=GIT_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError:
        return PatchFailure("tool", "git is not installed: patches need it")
    except (OSError, subprocess.TimeoutExpired) as error:
        return PatchFailure("tool", f"git could not be run: {error}")
    if done.returncode == 0:
        return done.stdout
    words = done.stderr.decode("utf-8", "replace").strip() or f"git apply ended with {done.returncode}"
    is_syntax = done.returncode == 128 or "No valid patches" in words or "corrupt patch" in words
    return PatchFailure("malformed" if is_syntax else "conflict", words)


def _path_problem(path: str) -> str | None:
    parts = path.split("/")
    if path.startswith(("/", "~")) or (len(path) > 1 and path[1] == ":"):
        return "absolute paths are refused"
    if any(part in ("", ".", "..") for part in parts):
        return "paths with .. or empty parts are refused"
    if not is_utf8(path):
        return "names that are not UTF-8 are refused"
    if "\0" in path or "\\" in path:
        return "paths with NUL or backslash are refused"
    if any(part.casefold().rstrip(". ") in (".git", "git~1") for part in parts):
        return "paths into .git are refused"
    return None


def _link_problem(workdir: Path, path: str) -> str | None:
    """Links are never written through or replaced: they may lead out of the trial's copy."""
    place = workdir
    for part in path.split("/"):
        place = place / part
        if place.is_symlink():
            return "a symbolic link is in the way, patches to links are refused"
    return None
