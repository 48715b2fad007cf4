"""Trials on a Slurm cluster, one job a trial."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.schema.job import AllocationUse, JobHandle, JobRequest, JobState, JobStatus, Loss, SchedulerFacts
from engine.schema.task import AllocationSection, SlurmSection
from slurm.batch.loss import explain_loss
from slurm.batch.script import job_name
from slurm.batch.silence import Silence
from slurm.batch.submitter import Submitter
from slurm.batch.whereabouts import JobFinder
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.reasons import sentence
from slurm.scheduler.source import Reading, StateSource
from slurm.scheduler.states import parse_state
from slurm.scheduler.submission import cancel_job
from slurm.trial_files import (
    SUBMISSION_FOLDER,
    belongs_to_another,
    ended,
    has_begun,
    is_cancel_requested,
    job_status,
    read_object,
    refresh,
    request_cancel,
    submission_file,
)

CANCEL_WAIT_S = 10.0
"""Seconds that an agent gets to end its trial; it needs four at most."""

_STALE_S = 8.0
_NEVER = "will not start:"
_POLL_S = 0.2
_LOOK_AGAIN_S = 2.0
_FACTS_ARRIVE_S = 20.0


class SlurmExecutor:
    """Runs each trial as a job of its own, with a node agent per node.

    A job's state is read from the trial folder first and from Slurm second, so that handles of an earlier
    engine process are as good as its own, and neither a slow scheduler nor missing accounting ends a trial.

    Args:
        settings: [slurm] of the task.
        allocation: [allocation] of the task.
        study_dir: The study's folder, on a disk that the nodes share.
        commands: Runs Slurm's programs.
        source: Knows the state of jobs.
        notify: Takes sentences that a person should read once.
        grace_s: Seconds that the files of an ended job get to show up here.
        stuck_s: Seconds after which a job is given up of which Slurm says that it will not start.
    """

    def __init__(
        self,
        settings: SlurmSection,
        allocation: AllocationSection,
        study_dir: Path,
        commands: SlurmCommands,
        source: StateSource,
        *,
        notify: Callable[[str], None] | None = None,
        grace_s: float = 10.0,
        stuck_s: float = 60.0,
    ) -> None:
        self._settings = settings
        self._commands = commands
        self._source = source
        self._notify = notify
        self._submitter = Submitter(settings, allocation, study_dir.name, commands, source, self._tell)
        self._finder = JobFinder(source, min_pause_s=settings.min_poll_s)
        self._silence = Silence(grace_s)
        self._stuck_s = stuck_s
        self._stuck_since: dict[str, float] = {}
        self._stopped_since: dict[str, float] = {}

    def submit(self, request: JobRequest) -> JobHandle:
        """Hand a trial to Slurm; blocks for one sbatch, longer only when its answer is lost.

        Raises:
            TaskFileError: Slurm refuses what the task file asks for.
            InfrastructureError: submitted before, no Slurm here, Slurm does not answer, or the disk refuses.
        """
        submission = self._submitter.submit(request)
        if submission.job_id is None:
            raise AssertionError("a submission without an error has a job")
        self._source.watch(submission.job_id, name=submission.name, submitted_at=submission.submitted_at)
        return JobHandle(
            executor="slurm", job_id=submission.job_id, trial_dir=request.trial_dir, token=request.token
        )

    def poll(self, handle: JobHandle) -> JobStatus:
        """The job's state: from result.json, then from Slurm, then from the agent's signs of life."""
        status = ended(handle)
        if status is not None:
            status = self._who_stopped(handle, status)
            if status.state.is_terminal and status.loss is None:
                self._forget(handle)
            return status
        if belongs_to_another(handle):
            return job_status(JobState.LOST, f"{handle.trial_dir} belongs to another submission")
        found = self._finder.find(handle)
        if found.job_id is None:
            if not found.is_certain:
                return job_status(_by_files(handle), found.why)
            return self._gone(handle, None, found.why)
        reading = self._reading(handle, found.job_id)
        for notice in self._source.take_notices():
            self._tell(notice)
        facts = reading.facts
        state = parse_state(facts.state) if facts is not None else None
        if reading.presence == "absent" or (state is not None and state.is_final):
            return self._gone(handle, facts)
        self._silence.still_there(handle)
        if facts is None or state is None:
            return job_status(_by_files(handle), reading.problem)
        words = _words(reading, facts)
        if state.phase == "live":
            return job_status(JobState.RUNNING, words, scheduler=facts)
        if not has_begun(handle):
            return self._waiting(found.job_id, words, facts)
        if facts.restarts > 0:
            lost = explain_loss(_folder(handle), facts, has_begun=True)
            return job_status(JobState.LOST, lost.reason, lost.loss, facts)
        return job_status(JobState.RUNNING, reading.problem, scheduler=facts)  # Slurm's answer is older

    def cancel(self, handle: JobHandle, *, wait_s: float = CANCEL_WAIT_S) -> None:
        """End a trial: the agent is asked first and gets so many seconds, a job that waits goes at once.

        A finished job is left alone; a lost one is ended where Slurm still has it or is to start it again.

        Raises:
            InfrastructureError: Slurm does not end the job.
        """
        is_over = ended(handle) is not None
        if belongs_to_another(handle) or (is_over and not _was_told_to_stop(handle)):
            return
        if not is_over:
            request_cancel(handle)
        found = self._finder.find(handle, at_once=True)
        if found.job_id is None and not found.is_certain:
            time.sleep(_LOOK_AGAIN_S)
            found = self._finder.find(handle, at_once=True)
        if found.job_id is None:
            return  # a job that turns up after all finds our request and starts nothing
        facts = self._reading(handle, found.job_id).facts
        state = parse_state(facts.state) if facts is not None else None
        if state is not None and state.is_final:
            return
        is_requeued = (
            state is not None and state.phase == "waiting" and facts is not None and facts.restarts > 0
        )
        if is_requeued or not (is_over or (has_begun(handle) and self._ends_itself(handle, wait_s))):
            cancel_job(self._commands, found.job_id, job_name(handle.token))

    def release(self) -> None:
        """Nothing is held between trials."""

    def usage(self) -> tuple[AllocationUse, ...]:
        """Nothing is held between trials."""
        return ()

    def _tell(self, text: str) -> None:
        if self._notify is not None:
            self._notify(f"note: {text}")

    def _who_stopped(self, handle: JobHandle, status: JobStatus) -> JobStatus:
        """A result is final; but of a run that others had stopped, Slurm says by whom after a moment."""
        if status.state is not JobState.FINISHED or not _was_told_to_stop(handle):
            return status
        job_id = self._finder.find(handle).job_id
        facts = self._reading(handle, job_id, at_once=True).facts if job_id is not None else None
        if facts is not None and _was_taken_away(facts):
            lost = explain_loss(_folder(handle), facts, has_begun=True)
            return job_status(JobState.LOST, lost.reason, lost.loss, facts)
        since = self._stopped_since.setdefault(handle.token, time.monotonic())
        is_settled = facts is not None and parse_state(facts.state).is_final
        if is_settled or time.monotonic() - since > _FACTS_ARRIVE_S:
            return status.model_copy(update={"scheduler": facts})
        return job_status(JobState.RUNNING, "the job is ending", scheduler=facts)

    def _reading(self, handle: JobHandle, job_id: str, *, at_once: bool = False) -> Reading:
        """What Slurm says; it is asked out of turn when the files say that something has happened."""
        record = read_object(submission_file(handle)) or {}
        at = record.get("submitted_at")
        submitted_at = float(at) if isinstance(at, (int, float)) else None
        self._source.watch(job_id, name=job_name(handle.token), submitted_at=submitted_at)
        is_stale = has_begun(handle) and self._silence.seconds(handle) > _STALE_S
        if at_once or is_cancel_requested(handle) or is_stale:
            return self._source.refresh_now(job_id)
        return self._source.reading(job_id)

    def _waiting(self, job_id: str, words: str, facts: SchedulerFacts) -> JobStatus:
        """A job in the queue; one that can never start would hold a study for ever."""
        if not words.startswith(_NEVER):
            self._stuck_since.pop(job_id, None)
            return job_status(JobState.PENDING, words, scheduler=facts)
        since = self._stuck_since.setdefault(job_id, time.monotonic())
        if time.monotonic() - since < self._stuck_s:
            return job_status(JobState.PENDING, words, scheduler=facts)
        return job_status(JobState.LOST, f"the job {words}", Loss.NEVER_STARTED, facts)

    def _gone(self, handle: JobHandle, facts: SchedulerFacts | None, why: str = "") -> JobStatus:
        """The job has ended or does not exist; its files get some time to arrive."""
        refresh(Path(handle.trial_dir))
        status = ended(handle)
        if status is not None:
            return status
        if is_cancel_requested(handle):
            return job_status(JobState.CANCELLED, "the agent gave no result", scheduler=facts)
        if why and not has_begun(handle):
            return job_status(JobState.LOST, f"the job never started: {why}", Loss.NEVER_STARTED)
        if not self._silence.is_final(handle):
            return job_status(_by_files(handle), "the job has ended; its files are awaited", scheduler=facts)
        lost = explain_loss(_folder(handle), facts, has_begun=has_begun(handle), memory=self._settings.mem)
        return job_status(JobState.LOST, lost.reason, lost.loss, facts)

    def _forget(self, handle: JobHandle) -> None:
        record = read_object(submission_file(handle)) or {}
        for job_id in {handle.job_id, str(record.get("job_id"))}:
            self._source.forget(job_id)
        self._silence.forget(handle)
        self._stopped_since.pop(handle.token, None)

    def _ends_itself(self, handle: JobHandle, wait_s: float) -> bool:
        deadline = time.monotonic() + wait_s
        while ended(handle) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
            refresh(Path(handle.trial_dir))
        return True


def _folder(handle: JobHandle) -> Path:
    return Path(handle.trial_dir) / SUBMISSION_FOLDER


def _was_told_to_stop(handle: JobHandle) -> bool:
    """Whether the agent wrote that somebody ended the run."""
    result = read_object(Path(handle.trial_dir) / "result.json") or {}
    return result.get("ended") == "cancelled"


def _was_taken_away(facts: SchedulerFacts) -> bool:
    """Whether Slurm has ended a job for a reason of its own, or is to start it again."""
    state = parse_state(facts.state)
    return state.loss is not None or (facts.restarts > 0 and state.phase != "live")


def _by_files(handle: JobHandle) -> JobState:
    return JobState.RUNNING if has_begun(handle) else JobState.PENDING


def _words(reading: Reading, facts: SchedulerFacts) -> str:
    if reading.problem is None:
        return sentence(facts.state, facts.reason, reading.start_estimate)
    return f"{reading.problem}; Slurm's last word is {reading.age_s or 0:.0f} s old: {facts.state}"
