"""Which allocation a trial was ordered in: `submission.json` in the trial folder."""

from __future__ import annotations

import time
from pathlib import Path

from pydantic import ValidationError

from engine.durable import write_json
from engine.schema.base import Record
from engine.schema.job import JobHandle, JobRequest
from slurm.trial_files import SUBMISSION_FILE, SUBMISSION_FOLDER, submission_file

_SUBMITTING_S = 90.0


class HeldSubmission(Record):
    """A trial's place. Times are unix seconds.

    Args:
        token: The trial's token.
        allocation: Number of the allocation.
        submitted_at: When it was ordered first.
        moves: How often it was ordered anew, because an allocation ended before it could start there.
        request: What was asked for.
    """

    token: str
    allocation: int
    submitted_at: float
    moves: int = 0
    request: JobRequest


def write_submission(submission: HeldSubmission) -> None:
    """Write a trial's place down.

    Raises:
        InfrastructureError: the disk refuses.
    """
    folder = Path(submission.request.trial_dir) / SUBMISSION_FOLDER
    write_json(folder / SUBMISSION_FILE, submission.model_dump(mode="json"))


def read_submission(handle: JobHandle) -> HeldSubmission | None:
    """A trial's place; None when it was never ordered."""
    try:
        return HeldSubmission.model_validate_json(submission_file(handle).read_bytes())
    except (OSError, ValidationError):
        return None


def may_be_submitting(handle: JobHandle) -> bool:
    """Whether a submission has begun so recently that its record may still come."""
    try:
        made_at = submission_file(handle).parent.stat().st_mtime
    except OSError:
        return False
    return time.time() - made_at < _SUBMITTING_S
