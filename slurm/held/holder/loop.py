"""The holder: takes orders one after another, runs each trial as a step, says what happened."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from slurm.agent.durable import touch_json
from slurm.held.holder.deadline import Deadline
from slurm.held.holder.fit import cut_lead_s, fits, needs_s
from slurm.held.holder.ledger import Entry, LedgerReader, append
from slurm.held.holder.leftovers import find_leftovers
from slurm.held.holder.plan import EVENTS, HEARTBEAT, ORDERS, TRIAL_FOLDER, HolderPlan
from slurm.held.holder.step import Step, StepEnd

_TICK_S = 0.1
_HEARTBEAT_S = 2.0
_WRITE_TRIES = 5
_TIME_LIMIT = "time_limit"
_CANCELLED = "cancelled"
_TOLD_TO_END = "told_to_end"
_AFTER_RESULT_S = 2.0
"""A step that goes on so long after its result is told to end, whatever srun still waits for."""


class Running:
    """The trial that runs now."""

    def __init__(self, order: Entry, step: Step) -> None:
        self.token = str(order["token"])
        self.trial_id = str(order["trial_id"])
        self.trial_dir = Path(order["trial_dir"])
        self.step = step
        self.started = time.monotonic()
        self.cut: str | None = None
        self.result_at: float | None = None


class Holder:
    """Runs trial after trial until it is told to leave, has nothing to do, or the time is up.

    Args:
        folder: The allocation's folder: holder.json, orders.jsonl, events.jsonl, heartbeat.
        plan: What holder.json says.
    """

    def __init__(self, folder: Path, plan: HolderPlan) -> None:
        self._folder = folder
        self._plan = plan
        self._orders = LedgerReader(folder / ORDERS)
        self._queue: list[Entry] = []
        self._known: set[str] = set()
        self._running: Running | None = None
        self._deadline = Deadline(os.environ.get("SLURM_JOB_ID"), plan.limit_s)
        self._longest_s: float | None = None
        self._leave: str | None = None
        self._signal: int | None = None
        self._idle_since: float | None = None
        self._last_order = 0
        self._next_heartbeat = 0.0

    def run(self) -> int:
        """Hold the allocation; returns when it is to be given back."""
        if any(entry["kind"] == "allocated" for entry in LedgerReader(self._folder / EVENTS).new()):
            # Requeued against our wish: what ran is not one clean measurement, and the engine moved on.
            self._say("leaving", reason="restarted", orders=0)
            return 0
        with self._signals():
            self._say(
                "allocated",
                job_id=os.environ.get("SLURM_JOB_ID"),
                nodelist=os.environ.get("SLURM_JOB_NODELIST", ""),
                end_time=self._deadline.end,
                limit_s=self._plan.limit_s,
                pid=os.getpid(),
                restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
            )
            while True:
                self._take_orders()
                reason = self._turn()
                if reason is not None:
                    self._say("leaving", reason=reason, orders=self._last_order)
                    return 0
                self._beat()
                time.sleep(_TICK_S)

    def _turn(self) -> str | None:
        """One look at everything; a reason when it is time to leave."""
        self._heed_time()
        if self._running is not None:
            end = self._running.step.poll()
            if end is not None:
                self._close(self._running, end)
            else:
                self._end_after_result(self._running)
            return None
        if self._leave is not None:
            return self._leave
        if self._queue:
            order = self._queue.pop(0)
            return str(order.get("reason", "ordered")) if order["kind"] == "leave" else self._try(order)
        return self._idle()

    def _take_orders(self) -> None:
        for order in self._orders.new():
            self._last_order = order["seq"]
            token = str(order.get("token"))
            if order["kind"] == "leave":
                self._queue.append(order)
            elif order["kind"] == "run" and token not in self._known:
                self._known.add(token)
                self._queue.append(order)
            elif order["kind"] == "cancel":
                self._cancel(token)

    def _cancel(self, token: str) -> None:
        """Withdraw a trial that waits, end one that runs; the engine has written its file `cancel`."""
        self._known.add(token)
        for order in [order for order in self._queue if order.get("token") == token]:
            self._queue.remove(order)
            self._say("withdrawn", trial_id=order["trial_id"], token=token)
        if self._running is not None and self._running.token == token:
            self._cut(self._running, _CANCELLED)

    def _heed_time(self) -> None:
        """End what runs when Slurm says so or the time is up."""
        lead_s = cut_lead_s(self._plan.limit_s)
        number, self._signal = self._signal, None
        if number == signal.SIGUSR2:
            self._deadline.warned(lead_s)
        elif number is not None:
            self._leave = _TOLD_TO_END
        if self._deadline.left_s() <= lead_s:
            self._leave = _TIME_LIMIT
        if self._leave in (_TIME_LIMIT, _TOLD_TO_END) and self._running is not None:
            self._cut(self._running, self._leave)

    def _cut(self, running: Running, why: str) -> None:
        if running.cut is not None:
            return
        running.cut = why
        # First the reason, then the deed: the agent's result will only say that it was told to stop.
        self._say("cut", trial_id=running.trial_id, token=running.token, why=why)
        running.step.end(None if why == _CANCELLED else signal.SIGUSR2)

    def _end_after_result(self, running: Running) -> None:
        """End a step that outlives its result: the head wrote it, so srun waits for a node that is gone."""
        now = time.monotonic()
        if running.result_at is None and (running.trial_dir / "result.json").exists():
            running.result_at = now
        if running.result_at is not None and now - running.result_at > _AFTER_RESULT_S:
            running.step.end(None)

    def _try(self, order: Entry) -> str | None:
        """Start a trial, or decline it for want of time; then the allocation is of no use any more."""
        left_s = self._deadline.left_s()
        need_s = needs_s(float(order["time_limit_s"]), self._longest_s)
        if not fits(need_s, left_s, self._plan.limit_s):
            reason = f"{left_s:.0f} s are left, the trial may need {need_s:.0f} s"
            self._say("declined", trial_id=order["trial_id"], token=order["token"], reason=reason)
            return "too_little_time"
        self._idle_since = None
        self._say("started", trial_id=order["trial_id"], token=order["token"])
        trial_dir = Path(order["trial_dir"])
        step = Step(
            self._plan.agent(order["spec_path"]),
            trial_dir / TRIAL_FOLDER,
            lambda: (trial_dir / "job.json").exists(),
        )
        self._running = Running(order, step)
        return None

    def _close(self, running: Running, end: StepEnd) -> None:
        """Say how a trial ended; leave if it left anything behind."""
        wall_s = time.monotonic() - running.started
        left = find_leftovers(self._plan, self._folder, running.trial_dir, running.token, self._beat)
        self._say(
            "ended",
            trial_id=running.trial_id,
            token=running.token,
            rc=end.returncode,
            words=end.words,
            starts=end.starts,
            agent_started=(running.trial_dir / "job.json").exists(),
            result=(running.trial_dir / "result.json").exists(),
            cut=running.cut,
            wall_s=wall_s,
            devices_clean=not left,
            left=left,
        )
        if running.cut is None:
            self._longest_s = max(wall_s, self._longest_s or 0.0)
        self._running = None
        if left:
            self._leave = self._leave or "dirty_devices"

    def _idle(self) -> str | None:
        now = time.monotonic()
        if self._idle_since is None:
            self._idle_since = now
            self._say("idle")
        return "idle" if now - self._idle_since >= self._plan.idle_s else None

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + _HEARTBEAT_S
        trial_id = self._running.trial_id if self._running else None
        with contextlib.suppress(OSError):
            touch_json(self._folder / HEARTBEAT, {"at": time.time(), "pid": os.getpid(), "trial": trial_id})

    def _say(self, kind: str, **values: object) -> None:
        """Write an event; a disk that stays full ends the holder: nobody could know what it does."""
        _insist(lambda: append(self._folder / EVENTS, kind, **values))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signal = number if self._signal in (None, signal.SIGUSR2) else self._signal

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        numbers = (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, self._on_signal) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _insist(write: Callable[[], object]) -> None:
    for attempt in range(_WRITE_TRIES):
        try:
            write()
            return
        except OSError:
            if attempt == _WRITE_TRIES - 1:
                raise
            time.sleep(1.0)
