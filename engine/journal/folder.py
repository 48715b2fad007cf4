"""The one place that knows the names inside a study folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from engine.durable import explain_disk_errors
from engine.errors import UsageError


@dataclass(frozen=True)
class StudyFolder:
    """Paths of a study; private to its owner (0700)."""

    root: Path

    @classmethod
    def create(cls, root: Path) -> StudyFolder:
        """Make a new study folder.

        Raises:
            UsageError: the folder exists already.
            DiskFullError, InfrastructureError: it cannot be made.
        """
        if root.exists():
            raise UsageError(
                "the study folder exists already",
                key="--out",
                value=str(root),
                rule="--out names a folder that does not exist",
                hint=f"choose another name, or `infrarsi resume {root}`",
            )
        folder = cls(root.resolve())
        with explain_disk_errors(root):
            root.parent.mkdir(parents=True, exist_ok=True)
            root.mkdir(mode=0o700)
            for part in (folder.journal, folder.trials, folder.requests, folder.patches):
                part.mkdir(mode=0o700)
            (root / ".gitignore").write_text("*\n")
        return folder

    @classmethod
    def open(cls, root: Path) -> StudyFolder:
        """Find an existing study.

        Raises:
            UsageError: there is no study here.
        """
        if not (root / "journal").is_dir():
            raise UsageError(
                "this is not a study folder",
                key="STUDY",
                value=str(root),
                rule="a folder that `infrarsi run --out` made",
                hint="give the folder that holds journal/ and trials/",
            )
        return cls(root.resolve())

    @property
    def journal(self) -> Path:
        """Segments and epoch claims."""
        return self.root / "journal"

    @property
    def trials(self) -> Path:
        """One folder a trial."""
        return self.root / "trials"

    @property
    def requests(self) -> Path:
        """Requests to a running engine."""
        return self.root / "requests"

    @property
    def patches(self) -> Path:
        """Patches by content: <sha256>.patch."""
        return self.root / "patches"

    @property
    def snapshot(self) -> Path:
        """The project as it was when the study began."""
        return self.root / "snapshot"

    @property
    def task_file(self) -> Path:
        """The frozen task file; its project is the snapshot."""
        return self.root / "infrarsi.toml"

    @property
    def report_markdown(self) -> Path:
        """The report for people."""
        return self.root / "report.md"

    @property
    def report_json(self) -> Path:
        """The report for programs."""
        return self.root / "report.json"

    @property
    def winner(self) -> Path:
        """The winning configuration, canonical and as files."""
        return self.root / "winner.toml"

    @property
    def notices(self) -> Path:
        """What the engine said beside the journal, one JSON object a line."""
        return self.root / "notices.jsonl"

    @property
    def compile_cache(self) -> Path:
        """Compiled kernels, shared by the trials of the study."""
        return self.root / "compile_cache"

    @property
    def scheduler_log(self) -> Path:
        """Every call of a scheduler's program, one JSON object a line."""
        return self.root / "scheduler.jsonl"

    def trial(self, trial_id: str) -> Path:
        """The folder of one trial."""
        return self.trials / trial_id

    def patch(self, sha256: str) -> Path:
        """The stored text of a patch."""
        return self.patches / f"{sha256}.patch"
