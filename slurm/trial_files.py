"""What a trial folder says about its job, whoever runs it: result, cancellation, life signs, last words."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

from engine.durable import explain_disk_errors, write_json
from engine.errors import InfrastructureError
from engine.schema.job import JobHandle, JobRequest, JobState, JobStatus, Loss, SchedulerFacts

SUBMISSION_FOLDER = "submitit"
SUBMISSION_FILE = "submission.json"
UNRECORDED = "unrecorded"
"""The job id of a handle whose submission reached no journal."""

_TAIL_BYTES = 65_536
_LAST_WORDS = 1000


def claim_submission(request: JobRequest) -> Path:
    """Make the folder of a trial's submission; only one submission can.

    Raises:
        InfrastructureError: the trial was submitted before, or the disk refuses.
    """
    folder = Path(request.trial_dir) / SUBMISSION_FOLDER
    with explain_disk_errors(folder):
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError as error:
            raise InfrastructureError(
                "the trial was submitted before",
                file=str(folder),
                rule="one submission per trial folder",
                hint="adopt the running job, or use a new trial folder",
            ) from error
    return folder


def job_status(
    state: JobState,
    reason: str | None = None,
    loss: Loss | None = None,
    scheduler: SchedulerFacts | None = None,
) -> JobStatus:
    """A reading of now."""
    return JobStatus(state=state, reason=reason, as_of=time.time(), loss=loss, scheduler=scheduler)


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object of a file, None when absent or not one."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return raw if isinstance(raw, dict) else None


def ended(handle: JobHandle) -> JobStatus | None:
    """The final state that result.json gives; None while there is none.

    A file that is unreadable or belongs to another submission makes the job lost.
    """
    path = Path(handle.trial_dir) / "result.json"
    if not path.exists():
        return None
    result = read_object(path)
    if result is None:
        return job_status(JobState.LOST, f"{path} is not a JSON object")
    if result.get("token") != handle.token:
        return job_status(JobState.LOST, f"{path} belongs to another submission")
    if result.get("ended") == "cancelled" and is_cancel_requested(handle):
        return job_status(JobState.CANCELLED)
    return job_status(JobState.FINISHED)


def belongs_to_another(handle: JobHandle) -> bool:
    """Whether the folder names another submission than the handle: by its agent or by its submitter."""
    folder = Path(handle.trial_dir)
    records = (read_object(folder / "job.json"), read_object(submission_file(handle)))
    tokens = [record.get("token") for record in records if record is not None]
    return any(token is not None and token != handle.token for token in tokens)


def submission_file(handle: JobHandle) -> Path:
    """Where the executor writes down what it submitted."""
    return Path(handle.trial_dir) / SUBMISSION_FOLDER / SUBMISSION_FILE


def is_cancel_requested(handle: JobHandle) -> bool:
    """Whether we asked for the end of this trial."""
    return (Path(handle.trial_dir) / "cancel").exists()


def request_cancel(handle: JobHandle) -> None:
    """Ask the agent to end the trial; it looks many times a second.

    Raises:
        InfrastructureError: the folder cannot be written.
    """
    write_json(Path(handle.trial_dir) / "cancel", {"at": time.time(), "token": handle.token})


def has_begun(handle: JobHandle) -> bool:
    """Whether an agent has claimed the trial."""
    return (Path(handle.trial_dir) / "job.json").exists()


def pulse(handle: JobHandle) -> bytes:
    """The heartbeat as it is now: an agent that lives changes it every second. No clocks are compared."""
    try:
        return (Path(handle.trial_dir) / "heartbeat").read_bytes()
    except OSError:
        return b""


def refresh(folder: Path) -> None:
    """Make a network file system look again: setting a folder's own mode drops what it remembers."""
    with contextlib.suppress(OSError):
        folder.chmod(folder.stat().st_mode & 0o7777)


def tail(path: Path) -> str:
    """The end of a text file, "" when there is none."""
    try:
        with path.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - _TAIL_BYTES))
            return stream.read().decode("utf-8", "replace").strip()
    except OSError:
        return ""


def last_words(*paths: Path) -> str:
    """The end of the first of these files that holds something."""
    for path in paths:
        text = tail(path)
        if text:
            return text[-_LAST_WORDS:]
    return "none"
