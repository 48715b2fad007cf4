"""From a trial's files, its allocation's events and Slurm's facts to the state of its job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from engine.schema.job import JobHandle, JobState, JobStatus, Loss
from slurm.held.allocations import Allocations, Ending
from slurm.held.holding import HOLDER_LOG, Holding
from slurm.held.progress import TAKEN_AWAY, TrialProgress
from slurm.held.requesting import STEP_LOG
from slurm.scheduler.losses import loss_in_words
from slurm.scheduler.reasons import sentence
from slurm.scheduler.records import Reading
from slurm.trial_files import (
    SUBMISSION_FOLDER,
    ended,
    has_begun,
    is_cancel_requested,
    job_status,
    last_words,
    read_object,
    refresh,
)

_ALREADY_RUN = 3
_RESULT_ARRIVES_S = 120.0
_FACTS_ARRIVE_S = 20.0
_UNFINISHED = frozenset({"total_timeout", "cancelled", "node_lost"})
"""Endings in result.json that may be the allocation's doing."""
_NO_PERSONS_WISH = frozenset({Loss.AGENT_DIED, Loss.NODE_FAILED, Loss.PREEMPTED, Loss.TIME_LIMIT})
"""Ends of an allocation after which a trial that waited in it is ordered in another one."""


class Verdicts:
    """Judges one trial at a time.

    Args:
        allocations: Where Slurm's word on an allocation comes from.
    """

    def __init__(self, allocations: Allocations) -> None:
        self._allocations = allocations
        self._waiting_since: dict[str, float] = {}

    def by_result(self, handle: JobHandle, holding: Holding | None) -> JobStatus | None:
        """What result.json means; None while there is none.

        A run that was told to stop because its allocation came to its end is lost, not finished.
        """
        status = ended(handle)
        if status is None or status.state is JobState.LOST or holding is None:
            return status
        result = read_object(Path(handle.trial_dir) / "result.json") or {}
        how = result.get("ended")
        if how not in _UNFINISHED:
            return status
        trial = holding.progress.trial(handle.token)
        if trial.cut in ("time_limit", TAKEN_AWAY):
            return self._cut_off(handle, trial.cut, holding)
        if how == "cancelled" and status.state is not JobState.CANCELLED:
            # It was told to stop, not by us: Slurm is about to say by whom.
            return self._taken_away(handle, holding)
        return status

    def by_allocation(self, handle: JobHandle, holding: Holding) -> JobStatus | None:
        """The state of a trial without a result; None: the allocation is over for it and never started it."""
        trial = holding.progress.trial(handle.token)
        is_cancelled = is_cancel_requested(handle)
        if trial.ended is not None:
            return self._after_its_step(handle, trial, trial.ended, holding)
        if trial.withdrawn or (is_cancelled and not trial.started and self._will_not_start(holding, trial)):
            return job_status(JobState.CANCELLED)
        leaving = holding.progress.leaving
        if leaving is not None and leaving.reason == TAKEN_AWAY:
            return self._taken_away(handle, holding)
        if trial.started and leaving is not None:
            reason = "Slurm started the allocation again in the middle of the trial"
            return job_status(JobState.LOST, reason, Loss.RESTARTED)
        if trial.declined is not None or leaving is not None:
            return None
        if not holding.has_order(handle.token) or holding.was_never_queued:
            return None
        ending = self._allocations.ending(holding)
        if ending is not None and is_cancelled:
            return job_status(JobState.CANCELLED)
        if ending is not None:
            was_waiting = holding.progress.allocated is not None and not (trial.started or has_begun(handle))
            if was_waiting and ending.loss in _NO_PERSONS_WISH:
                return None
            return _lost(handle, ending, holding)
        return self._alive(handle, trial, holding)

    def _will_not_start(self, holding: Holding, trial: TrialProgress) -> bool:
        """Whether a cancelled trial that has not started cannot start any more.

        A holder that comes later reads the order to cancel together with the order to run.
        """
        if trial.declined is not None or holding.progress.leaving is not None:
            return True
        return holding.progress.allocated is None

    def _alive(self, handle: JobHandle, trial: TrialProgress, holding: Holding) -> JobStatus:
        facts = self._allocations.facts(holding)
        if trial.started:
            state = JobState.RUNNING if has_begun(handle) else JobState.PENDING
            return job_status(state, None if state is JobState.RUNNING else "its step starts", None, facts)
        if holding.progress.allocated is not None:
            others = [token for token in holding.open_tokens if token != handle.token]
            reason = "waits for another trial in the same allocation" if others else "is about to start"
        else:
            reading = self._allocations.reading(holding)
            reason = "the allocation is queued" if reading is None else _why_it_waits(reading)
        return job_status(JobState.PENDING, reason, None, facts)

    def _after_its_step(
        self, handle: JobHandle, trial: TrialProgress, event: dict[str, Any], holding: Holding
    ) -> JobStatus:
        """A trial whose step is over, and whose result is not to be seen (yet)."""
        if event.get("result"):
            refresh(Path(handle.trial_dir))
            if self._waited(handle, _RESULT_ARRIVES_S):
                reason = "the holder saw the trial's result, this machine does not: is the disk shared?"
                return job_status(JobState.LOST, reason, Loss.VANISHED)
            return job_status(JobState.RUNNING, "its result is on the way")
        if trial.cut in ("time_limit", TAKEN_AWAY):
            return self._cut_off(handle, trial.cut, holding)
        if is_cancel_requested(handle):
            return job_status(JobState.CANCELLED, "ended before there was a result")
        words = str(event.get("words") or "")
        loss, reason = _loss_of_step(event, words)
        said = words or last_words(Path(handle.trial_dir) / SUBMISSION_FOLDER / STEP_LOG)
        return job_status(JobState.LOST, f"{reason}; last output: {said}", loss)

    def _cut_off(self, handle: JobHandle, cut: str, holding: Holding) -> JobStatus:
        if cut == TAKEN_AWAY:
            return self._taken_away(handle, holding)
        reason = "the allocation's time was up before the trial could finish"
        return job_status(JobState.LOST, reason, Loss.TIME_LIMIT)

    def _taken_away(self, handle: JobHandle, holding: Holding) -> JobStatus:
        """The allocation was told to end; by whom and why, Slurm knows after a moment."""
        if is_cancel_requested(handle):
            return job_status(JobState.CANCELLED)
        ending = self._allocations.ending(holding, at_once=True)
        if ending is not None:
            return _lost(handle, ending, holding)
        if not self._waited(handle, _FACTS_ARRIVE_S):
            return job_status(JobState.RUNNING, "the allocation is ending")
        return job_status(JobState.LOST, "the trial was ended from outside", Loss.CANCELLED_OUTSIDE)

    def _waited(self, handle: JobHandle, seconds: float) -> bool:
        since = self._waiting_since.setdefault(handle.token, time.monotonic())
        return time.monotonic() - since > seconds


def _why_it_waits(reading: Reading) -> str:
    if reading.problem is not None:
        return reading.problem
    if reading.facts is None:
        return "the allocation is queued"
    return f"the allocation {sentence(reading.facts.state, reading.facts.reason, reading.start_estimate)}"


def _lost(handle: JobHandle, ending: Ending, holding: Holding) -> JobStatus:
    loss, reason = ending.loss, ending.reason
    has_started = holding.progress.trial(handle.token).started or has_begun(handle)
    if loss is Loss.AGENT_DIED and not has_started:
        loss = Loss.NEVER_STARTED
    if holding.progress.allocated is None and loss is Loss.NEVER_STARTED:
        reason += f"; last output: {last_words(holding.folder / HOLDER_LOG)}"
    return job_status(JobState.LOST, reason, loss, ending.facts)


def _loss_of_step(event: dict[str, Any], words: str) -> tuple[Loss, str]:
    told = loss_in_words(words)
    if told is not None:
        return told, "the trial's step was ended"
    code = event.get("rc")
    if not event.get("agent_started"):
        return Loss.NEVER_STARTED, f"the trial's step did not start (srun: {code})"
    if code == _ALREADY_RUN:
        return Loss.RESTARTED, "the trial had been started before"
    return Loss.AGENT_DIED, f"the agent is gone without a result (srun: {code})"
