"""What the run was meant to try: the suspects of an attribution."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.schema.base import Scalar
from engine.schema.job import SchedulerFacts


@dataclass(frozen=True)
class AttributionContext:
    """How the candidate differs from the baseline.

    Attributes:
        changes: Mechanism → the candidate's value, only where it differs from the baseline's.
        patched_files: Files that the candidate's patches touch, relative to the project.
        first_log_line: Number of the first line of the log text; None where its place in the file is unknown.
        scheduler: What the scheduler last said of the job.
        own_limit_s: Seconds after which the trial's own agent ends it; None where that is not known.
    """

    changes: Mapping[str, Scalar] = field(default_factory=dict)
    patched_files: tuple[str, ...] = ()
    first_log_line: int | None = 1
    scheduler: SchedulerFacts | None = None
    own_limit_s: float | None = None

    @property
    def had_patch(self) -> bool:
        """Whether the candidate carries a patch."""
        return bool(self.patched_files)

    @property
    def implicated(self) -> tuple[str, ...]:
        """The mechanisms that may be to blame, sorted."""
        return tuple(sorted(self.changes))
