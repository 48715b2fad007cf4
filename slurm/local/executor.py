"""Trials on this machine, as jobs of submitit that outlive the engine."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path

from engine.durable import explain_disk_errors, write_json
from engine.errors import InfrastructureError
from engine.schema.job import AllocationUse, JobHandle, JobRequest, JobState, JobStatus, Loss
from slurm.agent.procfs import processes_of_trial
from slurm.agent.run import run
from slurm.local.adopted import kill_trial, wait_until
from slurm.local.detached import CONTROLLER_LOG, DetachedLocalExecutor
from slurm.local.identity import ProcessMark, mark_of, read_mark
from slurm.trial_files import (
    SUBMISSION_FILE,
    SUBMISSION_FOLDER,
    claim_submission,
    ended,
    is_cancel_requested,
    job_status,
    last_words,
    read_object,
    request_cancel,
    submission_file,
)

CANCEL_WAIT_S = 10.0
"""Seconds that an agent gets to end its trial; it needs four at most."""

_PLACEHOLDERS = ("%j", "%t", "%A", "%a")
_SUBMITTING_S = 30.0
_HEARTBEAT_S = 30.0


class LocalExecutor:
    """Runs each trial under a node agent of its own, one machine, no scheduler.

    Keeps nothing in memory: a job's state is read from the trial folder and /proc, so that handles of an
    earlier engine process are as good as its own. Nothing is queued: whoever submits decides how many run.
    """

    def submit(self, request: JobRequest) -> JobHandle:
        """Start the agent of a trial and return at once.

        Raises:
            InfrastructureError: submitted before, more than one node, or the disk refuses.
        """
        trial_dir = Path(request.trial_dir)
        self._check(request)
        folder = claim_submission(request)
        with explain_disk_errors(folder):
            executor = DetachedLocalExecutor(folder, request.trial_dir, request.time_limit_s)
            job = executor.submit(run, Path(request.spec_path))
        mark = mark_of(int(job.job_id), request.token)
        try:
            write_json(folder / SUBMISSION_FILE, {**asdict(mark), "submitted_at": time.time()})
        except InfrastructureError:
            kill_trial(trial_dir, [mark])
            raise
        return JobHandle(
            executor="local", job_id=job.job_id, trial_dir=request.trial_dir, token=request.token
        )

    def poll(self, handle: JobHandle) -> JobStatus:
        """The job's state, from result.json, then the agent's process, then the submission's."""
        status = ended(handle)
        if status is not None:
            return status
        if self._is_foreign(handle):
            return job_status(JobState.LOST, f"{handle.trial_dir} belongs to another submission")
        agent = read_mark(self._job_file(handle))
        controller = read_mark(submission_file(handle))
        if agent is not None and self._is_alive(agent, handle):
            return job_status(JobState.RUNNING)
        if agent is None and self._is_starting(controller, handle):
            return job_status(JobState.PENDING)
        # It may have ended between the two looks.
        return ended(handle) or self._gone(handle, agent)

    def cancel(self, handle: JobHandle, *, wait_s: float = CANCEL_WAIT_S) -> None:
        """Ask the agent to end the trial, wait so many seconds, then kill what is left.

        A finished job is left alone; of a lost one the remaining processes are ended.

        Raises:
            InfrastructureError: processes of the trial cannot be ended.
        """
        if ended(handle) is not None or self._is_foreign(handle):
            return
        trial_dir = Path(handle.trial_dir)
        request_cancel(handle)
        wait_until(lambda: not self._owners(handle), wait_s)
        if not kill_trial(trial_dir, self._owners(handle)):
            left = [process.pid for process in processes_of_trial(handle.trial_dir)]
            raise InfrastructureError(
                "processes of a cancelled trial cannot be ended",
                file=handle.trial_dir,
                value=left,
                hint="they may hang in the kernel (a dead disk, a GPU driver); see `ps -o stat,wchan`",
            )

    def release(self) -> None:
        """Nothing is held between trials."""

    def usage(self) -> tuple[AllocationUse, ...]:
        """Nothing is held between trials."""
        return ()

    def _check(self, request: JobRequest) -> None:
        if request.nodes != 1:
            raise InfrastructureError(
                "the local executor has one node",
                key="allocation.nodes",
                value=request.nodes,
                rule="nodes = 1",
                hint="use --executor slurm",
            )
        if any(placeholder in request.trial_dir for placeholder in _PLACEHOLDERS):
            raise InfrastructureError(
                "submitit would rewrite this path",
                file=request.trial_dir,
                rule=f"a trial folder's path holds none of {', '.join(_PLACEHOLDERS)}",
                hint="choose another --out",
            )

    def _job_file(self, handle: JobHandle) -> Path:
        return Path(handle.trial_dir) / "job.json"

    def _is_foreign(self, handle: JobHandle) -> bool:
        marks = [read_mark(self._job_file(handle)), read_mark(submission_file(handle))]
        return any(mark is not None and mark.token != handle.token for mark in marks)

    def _owners(self, handle: JobHandle) -> list[ProcessMark]:
        """The agent and its controller, as far as they run."""
        marks = [read_mark(self._job_file(handle)), read_mark(submission_file(handle))]
        return [mark for mark in marks if mark is not None and mark.runs(handle.trial_dir)]

    def _is_alive(self, agent: ProcessMark, handle: JobHandle) -> bool:
        if agent.here:
            return agent.runs(handle.trial_dir)
        beat = read_object(Path(handle.trial_dir) / "heartbeat") or {}
        at = beat.get("at")
        return isinstance(at, (int, float)) and time.time() - at < _HEARTBEAT_S

    def _is_starting(self, controller: ProcessMark | None, handle: JobHandle) -> bool:
        if controller is not None:
            return controller.runs(handle.trial_dir)
        try:
            made_at = (Path(handle.trial_dir) / SUBMISSION_FOLDER).stat().st_mtime
        except OSError:
            return False
        return time.time() - made_at < _SUBMITTING_S

    def _gone(self, handle: JobHandle, agent: ProcessMark | None) -> JobStatus:
        if is_cancel_requested(handle):
            return job_status(JobState.CANCELLED, "ended from outside: the agent gave no result")
        if agent is None:
            reason, loss = "the agent never started", Loss.NEVER_STARTED
        else:
            loss = Loss.AGENT_DIED
            reason = f"the agent (process {agent.pid} on {agent.host}) is gone without a result"
        left = processes_of_trial(handle.trial_dir)
        if left:
            reason += f"; {len(left)} processes of the trial still run: cancel ends them"
        folder = Path(handle.trial_dir) / SUBMISSION_FOLDER
        said = last_words(*sorted(folder.glob("*_log.err")), folder / CONTROLLER_LOG)
        return job_status(JobState.LOST, f"{reason}; last output: {said}", loss)
