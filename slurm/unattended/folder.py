"""The folder beside a study that its unattended engine keeps: `<study>.engine/`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".engine"


@dataclass(frozen=True)
class EngineFolder:
    """Paths of the unattended engine of a study; it lies beside the study, which may not exist yet."""

    root: Path

    @classmethod
    def of(cls, study: Path) -> EngineFolder:
        """The folder that belongs to a study's folder."""
        resolved = study.resolve()
        return cls(resolved.with_name(resolved.name + SUFFIX))

    @property
    def study(self) -> Path:
        """The study's folder."""
        return self.root.with_name(self.root.name.removesuffix(SUFFIX))

    @property
    def order(self) -> Path:
        """What the engine job runs (order.EngineOrder)."""
        return self.root / "order.json"

    @property
    def submission(self) -> Path:
        """The newest job of the engine (state.Submission)."""
        return self.root / "submission.json"

    @property
    def state(self) -> Path:
        """Where the engine stands (state.EngineState)."""
        return self.root / "state.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.root / "engine.sh"

    @property
    def log(self) -> Path:
        """Narration of all runs of the engine, appended."""
        return self.root / "engine.log"

    @property
    def result(self) -> Path:
        """The JSON object that the engine wrote last: the result, or its error."""
        return self.root / "result.json"

    @property
    def commands(self) -> Path:
        """Every call of a Slurm command, one JSON object a line."""
        return self.root / "commands.jsonl"


def job_name(study: Path, number: int) -> str:
    """Name of the n-th job (from 1) that runs the engine of a study; no two jobs share one.

    A name says which job a lost answer of sbatch was about, so a successor must not carry its predecessor's.
    """
    digest = hashlib.sha256(str(study.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"infrarsi-engine-{digest}" + (f"-{number}" if number > 1 else "")
