"""One frozen copy of the project per study: what is measured stays what it was, whatever the user edits."""

from __future__ import annotations

import collections
import hashlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pydantic

from engine import durable
from engine.errors import IntegrityError, ScopeError, UsageError
from engine.schema.base import Record
from engine.trial.file_tree import (
    FileEntry,
    Manifest,
    copy_file,
    is_utf8,
    leads_out,
    read_entry,
    remove_tree,
)
from engine.trial.project_listing import list_project

SIZE_CAP_BYTES = 512 << 20
MAX_FILES = 50_000
_ADVICE = "list data, checkpoints and outputs in [task] data or in .gitignore"


class Snapshot(Record):
    """A content-addressed copy of a project.

    folder holds files/ (the copy) and manifest.json; data_links maps a path inside the project to the data
    that a link there points to; source tells whether git chose the files.
    """

    folder: Path
    manifest: Manifest
    digest: str
    data_links: dict[str, str]
    source: str

    @property
    def files(self) -> Path:
        """The copied tree."""
        return self.folder / "files"

    def digests(self) -> dict[str, str]:
        """SHA-256 by path, regular files only."""
        return {path: entry.sha256 for path, entry in self.manifest.items() if entry.kind == "file"}

    def differences(self, project: Path) -> list[str]:
        """Files that a project no longer holds as they were, sorted; new files do not count."""
        return sorted(
            path
            for path, digest in self.digests().items()
            if not (project / path).is_file()
            or hashlib.sha256((project / path).read_bytes()).hexdigest() != digest
        )

    @classmethod
    def load(cls, folder: Path) -> Snapshot:
        """Read a snapshot's manifest.

        Raises:
            IntegrityError: it is missing or damaged.
        """
        try:
            stored = cls.model_validate_json((folder / "manifest.json").read_bytes())
        except (OSError, pydantic.ValidationError, ValueError) as error:
            raise IntegrityError(
                "the snapshot's manifest is missing or damaged",
                file=str(folder / "manifest.json"),
                hint="start a new study",
            ) from error
        if stored.digest != manifest_digest(stored.manifest):
            raise IntegrityError("the snapshot's manifest was changed", file=str(folder / "manifest.json"))
        return stored.model_copy(update={"folder": folder})


def take_snapshot(
    project: Path, destination: Path, data: Sequence[str] = (), size_cap: int = SIZE_CAP_BYTES
) -> Snapshot:
    """Copy a project's files.

    Args:
        project: The project's folder.
        destination: Where the snapshot goes; what an interrupted attempt left there is replaced.
        data: Paths (absolute, or relative to the project) that are referenced in place and not copied.
        size_cap: Most bytes that are copied.

    Raises:
        UsageError: the project is too large, or a file cannot be read or named.
        ScopeError: a link leads out of the project.
        DiskFullError, InfrastructureError: the destination cannot be written.
    """
    project, destination = project.resolve(), destination.absolute()
    data_folders = [Path(os.path.abspath(project / Path(name).expanduser())) for name in data]
    listing = list_project(project)
    excluded = [*data_folders, destination.resolve()]
    paths = [path for path in listing.paths if not _is_below(project / path, excluded)]
    _check_names(project, paths)
    _check_size(project, paths, size_cap)
    links = {
        folder.relative_to(project).as_posix(): str(folder)
        for folder in data_folders
        if folder.is_relative_to(project)
    }
    partial = destination.with_name(destination.name + ".partial")
    with durable.explain_disk_errors(destination):
        remove_tree(partial)
        (partial / "files").mkdir(mode=0o700, parents=True)
        manifest = _copy(project, partial / "files", paths, links)
        snapshot = Snapshot(
            folder=destination,
            manifest=manifest,
            digest=manifest_digest(manifest),
            data_links=links,
            source=listing.source,
        )
        durable.write_json(partial / "manifest.json", snapshot.model_dump(mode="json"))
        remove_tree(destination)
        partial.rename(destination)
    return snapshot


def manifest_digest(manifest: Manifest) -> str:
    """One hash of all paths, kinds, permission bits and contents."""
    total = hashlib.sha256()
    for path, entry in sorted(manifest.items()):
        line = f"{path}\0{entry.kind}\0{entry.mode:o}\0{entry.sha256}\n"
        total.update(line.encode("utf-8", "surrogateescape"))
    return total.hexdigest()


def _copy(project: Path, files: Path, paths: Sequence[str], data_links: dict[str, str]) -> Manifest:
    manifest: dict[str, FileEntry] = {}
    for path in paths:
        source, target = project / path, files / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if source.is_symlink():
                target.symlink_to(_inner_target(project, path, data_links))
            elif source.is_file():
                copy_file(source, target)
            else:
                continue  # a pipe, a socket, or gone since it was listed
        except PermissionError as error:
            raise UsageError(
                f"cannot be read: {error.strerror}",
                file=str(source),
                rule="every file of the project is readable",
                hint=_ADVICE,
            ) from error
        entry = read_entry(target)
        if entry is not None:
            manifest[path] = entry
    return manifest


def _inner_target(project: Path, path: str, data_links: dict[str, str]) -> str:
    """The text of a link's copy: relative, and inside the project.

    Raises:
        ScopeError: it leads out of the project.
    """
    target = os.readlink(project / path)
    here = (project / path).parent
    if os.path.isabs(target):
        absolute = Path(os.path.normpath(target))
        if absolute.is_relative_to(project):
            target = os.path.relpath(absolute, here)
    real = Path(os.path.realpath(project / path))
    is_data = any(real.is_relative_to(os.path.realpath(data)) for data in data_links.values())
    if leads_out(path, target) or not (real.is_relative_to(project) or is_data):
        raise ScopeError(
            f"the link leads out of the project, to {real}",
            file=str(project / path),
            value=target,
            rule="links of the project stay inside it",
            hint=f"if it is data, list it: data = [{path!r}]",
        )
    return target


def _is_below(path: Path, folders: Sequence[Path]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def _check_names(project: Path, paths: Sequence[str]) -> None:
    for path in paths:
        if not is_utf8(path):
            raise UsageError(
                "the file's name is not UTF-8",
                file=str(project),
                value=os.fsencode(path),
                rule="names of project files are UTF-8, so that records can hold them",
                hint="rename the file, or list it in .gitignore",
            )


def _check_size(project: Path, paths: Sequence[str], size_cap: int) -> None:
    """Refuse what is not meant to be copied for every trial.

    Raises:
        UsageError: too many bytes, with the biggest files, or too many files, with the fullest folders.
    """
    sizes: dict[str, int] = {}
    for path in paths:
        try:
            status = (project / path).lstat()
        except OSError:
            continue
        sizes[path] = status.st_size if stat.S_ISREG(status.st_mode) else 0
    total = sum(sizes.values())
    if total > size_cap:
        biggest = sorted(sizes.items(), key=lambda item: -item[1])[:5]
        listed = ", ".join(f"{path} ({size / (1 << 20):.1f} MiB)" for path, size in biggest)
        raise UsageError(
            f"too large to copy for every trial: {total / (1 << 20):.1f} MiB; biggest: {listed}",
            file=str(project),
            value=total,
            rule=f"at most {size_cap / (1 << 20):.1f} MiB, data not counted",
            hint=_ADVICE,
        )
    if len(sizes) > MAX_FILES:
        folders = collections.Counter(path.partition("/")[0] for path in sizes).most_common(5)
        listed = ", ".join(f"{folder} ({count:,} files)" for folder, count in folders)
        raise UsageError(
            f"too many files to copy for every trial: {len(sizes):,}; most in: {listed}",
            file=str(project),
            value=len(sizes),
            rule=f"at most {MAX_FILES:,} files, data not counted",
            hint=_ADVICE,
        )
