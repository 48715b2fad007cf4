"""Trials as steps of an allocation that is held between them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from engine.errors import InfraError, InfrastructureError
from engine.schema.job import AllocationUse, JobHandle, JobRequest, JobState, JobStatus, Loss
from engine.schema.task import AllocationSection, SlurmSection
from slurm.held.allocations import Allocations
from slurm.held.giving_back import give_back
from slurm.held.holding import Holding
from slurm.held.submission import (
    HeldSubmission,
    may_be_submitting,
    read_submission,
    write_submission,
)
from slurm.held.uses import use_of
from slurm.held.verdict import Verdicts
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.trial_files import (
    belongs_to_another,
    claim_submission,
    ended,
    is_cancel_requested,
    job_status,
    request_cancel,
)

IDLE_S = 120.0
"""Seconds without an order after which an allocation gives itself back."""
_CANCEL_WAIT_S = 12.0
_LOOK_S = 0.1
_MOST_MOVES = 3
# sbatch gives "%" and "\\" in paths a meaning, and a line break would end the line of an option.
_FORBIDDEN = ("%", "\\", "\n", "\r")


class HeldExecutor:
    """Runs trial after trial in one allocation; another one is queued when that one does not suit any more.

    Nothing that matters is kept in memory: allocations lie in `<study>/held/<n>/`, a trial's place in its own
    folder. A new engine goes on with a living allocation.

    Args:
        settings: [slurm].
        allocation: [allocation].
        study_dir: The study's folder, on a disk that the nodes share.
        commands: Runs Slurm's programs.
        source: Knows the jobs' states.
        notify: Takes sentences that a person should read once.
        idle_s: How long an allocation without an order is kept.
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
        idle_s: float = IDLE_S,
    ) -> None:
        self._study_dir = study_dir
        self._source = source
        self._notify = notify
        self._shape = allocation
        self._allocations = Allocations(settings, allocation, study_dir, commands, source, idle_s)
        self._verdicts = Verdicts(self._allocations)

    def submit(self, request: JobRequest) -> JobHandle:
        """Order a trial, in the open allocation or in one that is queued for it; returns at once.

        Raises:
            TaskFileError: Slurm refuses the allocation for something that the task file asks for.
            InfrastructureError: submitted before, Slurm refuses or does not answer, or the disk refuses.
        """
        self._check(request)
        folder = claim_submission(request)
        try:
            holding = self._allocations.place(request)
        except InfraError:
            folder.rmdir()
            raise
        submission = HeldSubmission(
            token=request.token, allocation=holding.number, submitted_at=time.time(), request=request
        )
        self._order(submission, holding)
        job_id = holding.job_id or holding.record.name
        return JobHandle(executor="slurm", job_id=job_id, trial_dir=request.trial_dir, token=request.token)

    def poll(self, handle: JobHandle) -> JobStatus:
        """The trial's state: from its result, then the holder's events, then Slurm.

        A trial whose allocation ended before it could start there is ordered again in another one.

        Raises:
            TaskFileError, InfrastructureError: another allocation is needed and cannot be had.
        """
        submission = read_submission(handle)
        holding = self._allocations.get(submission.allocation) if submission is not None else None
        status = self._verdicts.by_result(handle, holding)
        if status is not None:
            return status
        if belongs_to_another(handle):
            return job_status(JobState.LOST, f"{handle.trial_dir} belongs to another submission")
        if submission is None or holding is None:
            return self._unordered(handle)
        if not holding.has_order(handle.token) and not holding.is_closed and not is_cancel_requested(handle):
            holding.order_run(submission.request)
        status = self._verdicts.by_allocation(handle, holding)
        for notice in self._source.take_notices():
            if self._notify is not None:
                self._notify(f"note: {notice}")
        return status or self._move(handle, submission, holding)

    def cancel(self, handle: JobHandle, *, wait_s: float = _CANCEL_WAIT_S) -> None:
        """Withdraw a trial, or end it and wait so many seconds for its step to be over.

        A finished trial is left alone. The holder ends by force what does not go by itself.

        Raises:
            InfrastructureError: the disk refuses.
        """
        if ended(handle) is not None or belongs_to_another(handle):
            return
        submission = read_submission(handle)
        holding = self._allocations.get(submission.allocation) if submission is not None else None
        trial = holding.progress.trial(handle.token) if holding is not None else None
        if trial is not None and (trial.ended is not None or trial.withdrawn):
            return
        if not is_cancel_requested(handle):
            request_cancel(handle)
        if holding is None:
            return
        holding.order_cancel(handle.token)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline and self._is_in_hand(holding, handle):
            time.sleep(_LOOK_S)

    def release(self) -> None:
        """Give every allocation back; one that still has trials to run does those first."""
        give_back(self._allocations)

    def usage(self) -> tuple[AllocationUse, ...]:
        """What each allocation of the study has cost so far, the oldest first."""
        uses = (use_of(self._allocations, holding) for holding in self._allocations.all())
        return tuple(use for use in uses if use is not None)

    def _check(self, request: JobRequest) -> None:
        wanted = (request.nodes, request.ranks_per_node, request.cpus_per_rank)
        held = (self._shape.nodes, self._shape.ranks, self._shape.cpus_per_rank)
        if wanted != held:
            raise InfrastructureError(
                "the trial does not have the shape of the held allocation",
                key="allocation",
                value=wanted,
                rule=f"nodes, ranks a node, CPUs a rank = {held}",
                hint='use slurm.mode = "per-trial"',
            )
        if any(char in str(self._study_dir.absolute()) for char in _FORBIDDEN):
            raise InfrastructureError(
                "Slurm would read this path differently",
                file=str(self._study_dir),
                rule="a study folder's path holds no %, no backslash and no line break",
                hint="choose another --out",
            )

    def _order(self, submission: HeldSubmission, holding: Holding) -> None:
        # First the place, then the order: a successor that finds no order there gives it.
        write_submission(submission)
        holding.order_run(submission.request)

    def _unordered(self, handle: JobHandle) -> JobStatus:
        if is_cancel_requested(handle):
            return job_status(JobState.CANCELLED)
        if may_be_submitting(handle):
            return job_status(JobState.PENDING, "is being submitted")
        return job_status(JobState.LOST, "the trial was never ordered", Loss.NEVER_STARTED)

    def _move(self, handle: JobHandle, submission: HeldSubmission, holding: Holding) -> JobStatus:
        """Order a trial in another allocation: this one is over, or over for it, and did not start it."""
        trial = holding.progress.trial(handle.token)
        leaving = holding.progress.leaving
        why = trial.declined or (leaving.reason if leaving else holding.record.given_up) or "closed"
        if submission.moves >= _MOST_MOVES:
            reason = f"{_MOST_MOVES + 1} allocations ended before the trial could start; the last one: {why}"
            return job_status(JobState.LOST, reason, Loss.NEVER_STARTED)
        if leaving is None:
            # Should it come to life after all, it must not run what runs elsewhere.
            holding.order_cancel(handle.token)
            self._allocations.hand_over(holding, why)
        other = self._allocations.place(submission.request)
        moved = submission.model_copy(update={"allocation": other.number, "moves": submission.moves + 1})
        self._order(moved, other)
        return job_status(JobState.PENDING, f"was moved to another allocation ({why})")

    def _is_in_hand(self, holding: Holding, handle: JobHandle) -> bool:
        """Whether a holder is about to do what it was ordered to do with a trial."""
        progress = holding.refresh()
        if progress.allocated is None or progress.trial(handle.token).is_over or progress.leaving is not None:
            return False
        return self._allocations.ending(holding) is None
