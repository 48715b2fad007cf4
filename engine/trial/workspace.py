"""A trial's own copy of the project: prepared, sealed, compared after the run, removed."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from pathlib import Path

import pydantic

from engine import durable
from engine.errors import IntegrityError
from engine.schema.base import Record
from engine.schema.task import ScopeSection
from engine.trial.file_tree import Manifest, copy_tree, read_entry, remove_tree, scan
from engine.trial.patching import PatchFailure, apply_patch, parse_patch
from engine.trial.scope import ScopeReport, changed_paths, check_patch_scope, inspect
from engine.trial.snapshot import Snapshot


class Seal(Record):
    """What a workspace held right before the run; stored beside it."""

    manifest: Manifest
    patched_files: tuple[str, ...]
    violations: tuple[str, ...]


@dataclasses.dataclass
class Workspace:
    """A prepared folder.

    sealed is None until `seal()` was called; scope and bound_files are those of the task, to check patches.
    """

    root: Path
    snapshot: Manifest
    scope: ScopeSection | None = None
    bound_files: tuple[str, ...] = ()
    sealed: Seal | None = None
    touched: tuple[str, ...] = ()

    @classmethod
    def load(cls, root: Path) -> Workspace:
        """Read a sealed workspace, in any process.

        Raises:
            IntegrityError: it was never sealed, or its seal is damaged.
        """
        file = _seal_file(root)
        try:
            sealed = Seal.model_validate_json(file.read_bytes())
        except (OSError, pydantic.ValidationError, ValueError) as error:
            raise IntegrityError(
                "the record of the prepared project is missing or damaged",
                file=str(file),
                hint="the trial cannot be judged; run it again",
            ) from error
        return cls(root, {}, sealed=sealed)

    @property
    def patched_files(self) -> tuple[str, ...]:
        """Files that patches touched."""
        return self.touched if self.sealed is None else self.sealed.patched_files

    def apply(self, text: str) -> PatchFailure | None:
        """Apply a patch on top of what is there, and remember what it touches; None when it was applied."""
        patch = parse_patch(text)
        if isinstance(patch, PatchFailure):
            return patch
        failure = apply_patch(self.root, text)
        if failure is None:
            self.touched = tuple(dict.fromkeys([*self.touched, *patch.paths]))
        return failure

    def seal(self) -> tuple[str, ...]:
        """Record the folder as it will run: after patches and configuration, before the run.

        Returns:
            What patches touched against the scope; empty where all is well or no scope was given.

        Raises:
            DiskFullError, InfrastructureError: the folder cannot be read or the record not written.
        """
        with durable.explain_disk_errors(self.root):
            manifest = scan(self.root)
        changed = set(changed_paths(self.snapshot, manifest)) - set(self.bound_files)
        patched = tuple(sorted({*self.touched, *changed}))
        violations: tuple[str, ...] = ()
        if self.scope is not None:
            found = check_patch_scope(patched, self.scope.editable, self.scope.locked, self.bound_files)
            violations = tuple(str(violation) for violation in found)
        self.sealed = Seal(manifest=manifest, patched_files=patched, violations=violations)
        durable.write_json(_seal_file(self.root), self.sealed.model_dump(mode="json"))
        return violations

    def inspect(self) -> ScopeReport:
        """Compare the folder with what was sealed.

        Raises:
            IntegrityError: it was never sealed, or cannot be read.
        """
        if self.sealed is None:
            raise IntegrityError("the workspace was not sealed before the run", file=str(self.root))
        try:
            return inspect(self.root, self.sealed.manifest)
        except OSError as error:
            raise IntegrityError(
                f"the workspace cannot be read after the run: {error.strerror}", file=str(self.root)
            ) from error

    def findings(self) -> tuple[str, ...]:
        """Everything against the scope, before and after the run, in sentences.

        Raises:
            IntegrityError: as for `inspect`.
        """
        report = self.inspect()
        before = () if self.sealed is None else self.sealed.violations
        return (*before, *(str(violation) for violation in report.violations))

    def remove(self) -> None:
        """Remove the copy; data that links point to, and the record of the seal, stay."""
        remove_tree(self.root)


def prepare_workspace(
    snapshot: Snapshot,
    root: Path,
    scope: ScopeSection | None = None,
    bound_files: Collection[str] = (),
) -> Workspace:
    """Copy a snapshot for one trial and link the data in.

    Args:
        snapshot: The study's snapshot.
        root: The folder to make; it must not exist.
        scope: The task's scope, to check what patches touch.
        bound_files: Project files that the configuration is written to.

    Raises:
        IntegrityError: the snapshot's files are not what its manifest says.
        DiskFullError, InfrastructureError: the folder cannot be written.
    """
    with durable.explain_disk_errors(root):
        root.mkdir(mode=0o700)
        try:
            copy_tree(snapshot.files, root, snapshot.manifest)
        except FileNotFoundError as error:
            raise IntegrityError("a file of the snapshot is missing", file=str(error.filename)) from error
        copied = scan(root)
        damaged = changed_paths(snapshot.manifest, copied)
        if damaged:
            raise IntegrityError(
                f"the snapshot was changed: {', '.join(damaged[:5])}",
                file=str(snapshot.files),
                hint="start a new study",
            )
        links: Manifest = {}
        for path, target in snapshot.data_links.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).symlink_to(target)
            entry = read_entry(root / path)
            if entry is not None:
                links[path] = entry
    return Workspace(root, {**copied, **links}, scope, tuple(bound_files))


def _seal_file(root: Path) -> Path:
    return root.with_name(f"{root.name}.seal.json")
