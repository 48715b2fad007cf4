"""Which Slurm job runs a trial: as recorded, or found by its name when the record was cut off."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.durable import write_json
from engine.errors import InfrastructureError
from engine.schema.job import JobHandle
from slurm.batch.script import job_name
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from slurm.scheduler.submission import the_job
from slurm.trial_files import UNRECORDED, read_object, submission_file

APPEARS_WITHIN_S = 120.0
"""A job that its submitter could not record turns up within this time, or does not exist."""


@dataclass(frozen=True)
class Whereabouts:
    """The job's id; without one, whether it is certain that there is no job, and why."""

    job_id: str | None
    is_certain: bool = True
    why: str = ""


@dataclass(frozen=True)
class Submission:
    """submission.json: written before sbatch is called, and again after its answer; times in unix seconds."""

    token: str
    name: str
    intended_at: float
    job_id: str | None = None
    submitted_at: float | None = None
    refused: str | None = None

    def write(self, folder: Path) -> None:
        """Write it durably.

        Raises:
            InfrastructureError: the disk refuses.
        """
        write_json(folder, {"version": 1, **vars(self)})


class JobFinder:
    """Finds the job of a handle, with a pause between two questions to the scheduler.

    Args:
        source: Looks jobs up by name.
        min_pause_s: Seconds between two looks for the same job.
        clock: Unix time, seconds.
    """

    def __init__(
        self, source: StateSource, *, min_pause_s: float, clock: Callable[[], float] = time.time
    ) -> None:
        self._source = source
        self._min_pause_s = min_pause_s
        self._clock = clock
        self._looked_at: dict[str, float] = {}

    def find(self, handle: JobHandle, *, at_once: bool = False) -> Whereabouts:
        """Where the job is; `at_once` asks the scheduler without the usual pause."""
        record = read_object(submission_file(handle)) or {}
        if record.get("job_id"):
            return Whereabouts(str(record["job_id"]))
        if handle.job_id != UNRECORDED:
            return Whereabouts(handle.job_id)
        if record.get("refused"):
            return Whereabouts(None, why=str(record["refused"]))
        if not record:
            return self._never_handed_over(handle)
        return self._by_name(handle, record, at_once)

    def _never_handed_over(self, handle: JobHandle) -> Whereabouts:
        """No record: sbatch was not called, unless the file only has not reached us yet."""
        why = "the engine ended before it submitted the job"
        return Whereabouts(None, self._is_past(_mtime(Path(handle.trial_dir))), why)

    def _by_name(self, handle: JobHandle, record: dict[str, Any], at_once: bool) -> Whereabouts:
        name = job_name(handle.token)
        intended_at = record.get("intended_at")
        since = float(intended_at) if isinstance(intended_at, (int, float)) else 0.0
        now = self._clock()
        if not at_once and 0 <= now - self._looked_at.get(name, 0.0) < self._min_pause_s:
            return Whereabouts(None, False, f"looking for a job called {name}")
        self._looked_at[name] = now
        try:
            found = self._source.find(name, since)
        except SchedulerUnavailable as error:
            return Whereabouts(
                None, False, f"whether a job called {name} exists is not known: {error.message}"
            )
        if not found:
            return Whereabouts(None, self._is_past(since), f"Slurm knows no job called {name}")
        first = the_job(found)
        adopted = Submission(handle.token, name, since, first.job_id, first.submitted_at)
        with contextlib.suppress(InfrastructureError):
            adopted.write(submission_file(handle))
        return Whereabouts(first.job_id)

    def _is_past(self, since: float) -> bool:
        return self._clock() - since > APPEARS_WITHIN_S


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
