"""The held allocations of a study: which takes the next trial, when another is queued, when one is over."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

from engine.errors import InfraError
from engine.schema.job import JobRequest, Loss, SchedulerFacts
from engine.schema.task import AllocationSection, SlurmSection
from slurm.held.holder.fit import fits, needs_s
from slurm.held.holding import Holding, HoldingRecord, new_name
from slurm.held.pulse import Pulse
from slurm.held.requesting import allocation_request, holder_plan, holder_script
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.losses import loss_of
from slurm.scheduler.reasons import sentence
from slurm.scheduler.source import Reading, SchedulerUnavailable, StateSource
from slurm.scheduler.states import parse_state
from slurm.scheduler.submission import submit

_SILENT_S = 8.0
"""A holder that beats is believed; about one that has not for so long Slurm is asked at once."""
_LATE_S = 60.0
"""A submission whose job has not turned up after so long never reached Slurm."""


@dataclass(frozen=True)
class Ending:
    """An allocation that was taken away: why, in words, and what the scheduler said."""

    loss: Loss
    reason: str
    facts: SchedulerFacts | None


class Allocations:
    """Every allocation of a study, the newest one last; at most one takes trials.

    Args:
        settings: [slurm].
        allocation: [allocation].
        study_dir: The study's folder; allocations lie in `held/<n>/`.
        commands: Runs sbatch and scancel.
        source: Knows the jobs' states.
        idle_s: How long a holder waits for an order before it leaves.
    """

    def __init__(
        self,
        settings: SlurmSection,
        allocation: AllocationSection,
        study_dir: Path,
        commands: SlurmCommands,
        source: StateSource,
        idle_s: float,
    ) -> None:
        self._settings = settings
        self._allocation = allocation
        self._root = study_dir.absolute() / "held"
        self._commands = commands
        self._source = source
        self._idle_s = idle_s
        self._known: dict[int, Holding] = {}
        self._pulses: dict[int, Pulse] = {}
        self._facts: dict[int, SchedulerFacts | None] = {}
        self._next_search: dict[int, float] = {}
        self._not_again: set[int] = set()

    def all(self) -> list[Holding]:
        """Every allocation, the oldest first, each read anew."""
        numbers = sorted(int(path.name) for path in self._root.glob("*") if path.name.isdigit())
        return [holding for number in numbers if (holding := self.get(number)) is not None]

    def get(self, number: int) -> Holding | None:
        """One allocation, read anew; None where its folder holds no record."""
        holding = self._known.get(number) or Holding.load(self._root / str(number))
        if holding is not None:
            self._known[number] = holding
            holding.refresh()
        return holding

    def place(self, request: JobRequest) -> Holding:
        """The allocation for a trial: the open one, or a new one if that does not suit.

        Raises:
            TaskFileError: Slurm refuses a new allocation for something that the task file asks for.
            InfrastructureError: Slurm refuses for another reason or does not answer, or the disk refuses.
        """
        holding = self._open()
        if holding is not None:
            objection = self._objection(holding, request)
            if objection is None:
                return holding
            self.hand_over(holding, objection)
        return self._queue(request.exclude)

    def hand_over(self, holding: Holding, why: str) -> None:
        """Order nothing more here; what was ordered before is still done, then the holder leaves."""
        if holding.record.given_up is None:
            holding.update(given_up=why)
        holding.order_leave(why)
        if holding.progress.allocated is None and not holding.open_tokens:
            self.cancel_job(holding)

    def cancel_job(self, holding: Holding) -> None:
        """Have Slurm end an allocation, ours alone: the id counts only together with the name."""
        if holding.job_id is not None:
            self._commands.run("scancel", "--name", holding.record.name, holding.job_id)

    def reading(self, holding: Holding, *, at_once: bool = False) -> Reading | None:
        """What Slurm says about an allocation, `at_once` out of turn; None while its id is not known."""
        job_id = holding.job_id or self._search(holding)
        if job_id is None:
            return None
        self._source.watch(job_id, name=holding.record.name, submitted_at=holding.record.submitted_at)
        if at_once or (holding.progress.allocated is not None and not self.is_beating(holding)):
            reading = self._source.refresh_now(job_id)
        else:
            reading = self._source.reading(job_id)
        self._facts[holding.number] = reading.facts
        return reading

    def facts(self, holding: Holding) -> SchedulerFacts | None:
        """What Slurm said about an allocation when it was last asked; asks nothing."""
        return self._facts.get(holding.number)

    def is_beating(self, holding: Holding) -> bool:
        """Whether the holder is there and well: then no scheduler needs to be asked, however it fares."""
        progress = holding.progress
        facts = self._facts.get(holding.number)
        is_over = facts is not None and parse_state(facts.state).is_final
        if progress.allocated is None or progress.leaving is not None or is_over:
            return False
        return self.pulse(holding).silent_s() <= _SILENT_S

    def ending(self, holding: Holding, *, at_once: bool = False) -> Ending | None:
        """Why an allocation is over that did not leave by itself; None while it may go on.

        Args:
            holding: The allocation.
            at_once: Something has ended: ask Slurm even if the holder seems well.
        """
        if self.is_beating(holding) and not at_once:
            return None
        reading = self.reading(holding, at_once=at_once)
        if reading is None:
            return None
        facts = reading.facts
        if facts is not None and parse_state(facts.state).is_final:
            return Ending(loss_of(facts), f"the allocation {sentence(facts.state, facts.reason)}", facts)
        if facts is not None and self._is_queued_again(holding, facts):
            return Ending(Loss.RESTARTED, "Slurm took the allocation away and queued it again", facts)
        if reading.presence == "absent":
            return Ending(Loss.VANISHED, "Slurm does not know the allocation any more", facts)
        return None

    def forget(self, holding: Holding) -> None:
        """Ask Slurm no more about an allocation."""
        if holding.job_id is not None:
            self._source.forget(holding.job_id)

    def pulse(self, holding: Holding) -> Pulse:
        """The heartbeat of an allocation's holder."""
        return self._pulses.setdefault(holding.number, Pulse(holding.folder))

    def _is_queued_again(self, holding: Holding, facts: SchedulerFacts) -> bool:
        """Whether Slurm is to start an allocation a second time; then it is told not to, once."""
        had_come = holding.progress.allocated is not None
        if not had_come or facts.restarts == 0 or parse_state(facts.state).phase != "waiting":
            return False
        if holding.number not in self._not_again:
            self._not_again.add(holding.number)
            self.cancel_job(holding)
        return True

    def _open(self) -> Holding | None:
        """The newest allocation, if trials may be ordered there."""
        holdings = self.all()
        if not holdings or holdings[-1].is_closed:
            return None
        holding = holdings[-1]
        if holding.job_id is None and self._search(holding, insist=True) is None:
            self.hand_over(holding, "its submission never reached Slurm")
            return None
        return None if self.ending(holding) is not None else holding

    def _search(self, holding: Holding, *, insist: bool = False) -> str | None:
        """The id of a job whose submission an engine did not live to see answered.

        Raises:
            SchedulerUnavailable: nobody can be asked, and `insist` is set.
        """
        record = holding.record
        if holding.progress.leaving is not None or record.given_up is not None:
            return None
        now = time.monotonic()
        if not insist and now < self._next_search.get(holding.number, 0.0):
            return None
        self._next_search[holding.number] = now + self._settings.min_poll_s
        try:
            found = self._source.find(record.name, record.intended_at - _LATE_S)
        except SchedulerUnavailable:
            if insist:
                raise
            return None
        if found:
            holding.update(job_id=found[0].job_id, submitted_at=found[0].submitted_at or record.intended_at)
        elif time.time() - record.intended_at > _LATE_S:
            self.hand_over(holding, "its submission never reached Slurm")
        return holding.record.job_id

    def _objection(self, holding: Holding, request: JobRequest) -> str | None:
        """Why a trial does not suit an open allocation; None when it does."""
        allocated = holding.progress.allocated
        if allocated is None:
            missing = sorted(set(request.exclude) - set(holding.record.exclude))
            return f"it may get nodes that are excluded now: {', '.join(missing)}" if missing else None
        excluded = sorted(set(request.exclude) & set(allocated.nodes))
        if excluded:
            return f"it has nodes that are excluded now: {', '.join(excluded)}"
        need_s = needs_s(request.time_limit_s, holding.progress.longest_s) * (1 + len(holding.open_tokens))
        left_s = allocated.end_time - time.time()
        if not fits(need_s, left_s, allocated.limit_s):
            return f"{left_s:.0f} s are left, trials may need {need_s:.0f} s"
        return None

    def _queue(self, exclude: tuple[str, ...]) -> Holding:
        """Submit another allocation."""
        taken = [int(path.name) for path in self._root.glob("*") if path.name.isdigit()]
        folder = self._root / str(max(taken, default=0) + 1)
        name = new_name()
        request = allocation_request(self._settings, self._allocation, name, folder, exclude)
        plan, script = holder_plan(request, self._idle_s), holder_script(request, folder)
        on_cuda = self._allocation.device == "cuda"
        per_node = self._allocation.gpus_per_node if on_cuda else self._allocation.ranks
        record = HoldingRecord(
            name=name,
            intended_at=time.time(),
            gpus=per_node * self._allocation.nodes,
            limit_s=plan.limit_s,
            exclude=exclude,
        )
        holding = Holding.create(folder, record)
        path = holding.write_plan(dataclasses.asdict(plan), script)
        self._known[holding.number] = holding
        try:
            job_id = submit(self._commands, self._source, path, name)
        except InfraError:
            # It may turn up all the same: then it finds the order to leave.
            self.hand_over(holding, "sbatch gave no job id")
            raise
        holding.update(job_id=job_id, submitted_at=time.time())
        self._source.watch(job_id, name=name, submitted_at=holding.record.submitted_at)
        return holding
