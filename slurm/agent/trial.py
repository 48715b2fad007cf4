"""This node's part of one attempt: its ranks, its socket, its launcher."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from slurm.agent.environment import training_environment
from slurm.agent.launch import LaunchError, Meeting, launcher_command, start_launcher, with_setup
from slurm.agent.listener import Listener
from slurm.agent.loop import Loop
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan
from slurm.agent.procfs import ProcessStat, descendants, processes_of_trial, read_stat
from slurm.agent.ranks import RankRecord
from slurm.agent.reap import end_everything, reap_orphans
from slurm.agent.shim import VARIABLE as SHIM_VARIABLE
from slurm.agent.srun import shim_orders, srun_command
from slurm.agent.step_tasks import StepTasks

_SAMPLE_S = 0.4
_DRAIN_S = 0.5


class Trial:
    """The running parts of a trial on one node.

    `is_started_everywhere`: the head's launcher starts the ranks of all nodes, the others have none.
    """

    def __init__(self, plan: LaunchPlan, node: NodeIdentity, loop: Loop) -> None:
        self.plan = plan
        self.node = node
        limit = plan.memory_limit_bytes if plan.device == "cpu" else None
        first = node.rank * plan.ranks_per_node
        numbers = range(first, first + plan.ranks_per_node)
        self.ranks = [
            RankRecord(rank, plan.folder, wanted=plan.total_updates, limit_bytes=limit) for rank in numbers
        ]
        self.is_started_everywhere = plan.launcher == "srun" and node.is_scheduled
        self._tasks = StepTasks(numbers) if self.is_started_everywhere else None
        self.listener = Listener(loop, self.ranks, plan.trial_dir, node.rank, self._tasks)
        self.launcher: subprocess.Popen[bytes] | None = None
        self.log_path = plan.folder / f"launcher{node.suffix}.log"
        self.log_start = 0
        self._next_sample = 0.0

    def tick(self) -> None:
        """Reap and sample when due."""
        reap_orphans(self.launcher, self._rank_ended)
        now = time.monotonic()
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_S
            for rank in self.ranks:
                if rank.meter is not None and not rank.meter.gone:
                    rank.meter.sample()

    def start(self, meeting: Meeting, roster: Sequence[Mapping[str, Any]]) -> None:
        """Start the launcher, where this node has one.

        Args:
            meeting: Where the ranks of all nodes meet.
            roster: `name` and `socket` of each node; only the head of a trial under srun needs it.

        Raises:
            LaunchError: it could not be started.
        """
        plan = self.plan
        if plan.nodes != self.node.count:
            raise LaunchError(f"nodes: {plan.nodes}; rule: without a scheduler a trial runs on one node")
        if self.is_started_everywhere and self.node.rank != 0:
            return
        environment = training_environment(plan, os.environ, self.listener.path, meeting.port)
        limit = plan.memory_limit_bytes if plan.device == "cpu" else None
        if self.is_started_everywhere:
            command = srun_command(plan, self.node, [entry["name"] for entry in roster])
            environment[SHIM_VARIABLE] = shim_orders(plan, meeting, roster)
            limit = None  # of the tasks, not of srun
        else:
            command = with_setup(plan.setup, launcher_command(plan, meeting))
        with self.log_path.open("ab") as log:
            self.log_start = log.tell()
            self.launcher = start_launcher(plan, command, environment, log, limit)

    def launcher_code(self) -> int | None:
        """How the launcher ended, as of subprocess; None while it runs or where there is none."""
        return None if self.launcher is None else self.launcher.poll()

    def log_tail(self, limit_bytes: int) -> str:
        """The end of what this attempt's launcher and ranks have printed."""
        try:
            with self.log_path.open("rb") as log:
                size = log.seek(0, os.SEEK_END)
                log.seek(max(self.log_start, size - limit_bytes))
                return log.read(limit_bytes).decode(errors="replace")
        except OSError:
            return ""

    def all_ended(self) -> bool:
        """Whether every rank of this node has sent its end record."""
        return all(rank.end for rank in self.ranks)

    def finish(self, pump: Callable[[float], None]) -> int | None:
        """Read what is left, end what still runs; the launcher's return code as of subprocess.

        Raises:
            LeftoverError: a process cannot be ended.
        """
        try:
            self.listener.drain(_DRAIN_S)
            end_everything(self._left, pump)
            self.listener.drain(_DRAIN_S)
        finally:
            self.listener.close()
        code = None if self.launcher is None else self.launcher.wait()
        for rank in self.ranks:
            if rank.meter is not None and self.launcher is not None and rank.meter.pid == self.launcher.pid:
                rank.meter.exit_code = code
            if rank.meter is not None and rank.meter.limit_lifted:
                rank.note("the memory limit was lifted during the run")
        return code

    def _left(self) -> list[ProcessStat]:
        """Every process of this node's part that still runs."""
        below = descendants(os.getpid())
        for root in self._tasks.roots() if self._tasks is not None else ():
            stat = read_stat(root)
            below += [*([stat] if stat is not None and stat.alive else []), *descendants(root)]
        socket_path = self.listener.path if self.plan.nodes > 1 else None
        return below or processes_of_trial(self.plan.trial_dir, socket_path)

    def _rank_ended(self, pid: int, wait_status: int) -> None:
        for rank in self.ranks:
            if rank.meter is not None and rank.meter.pid == pid:
                rank.meter.gone = True
                rank.meter.set_wait_status(wait_status)
