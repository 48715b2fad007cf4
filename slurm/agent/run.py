"""One trial from launch to result.json."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from slurm.agent.durable import claim_json, touch_json
from slurm.agent.environment import training_environment
from slurm.agent.launch import (
    LaunchError,
    adopt_orphans,
    free_port,
    launcher_command,
    start_launcher,
    with_setup,
)
from slurm.agent.listener import Listener
from slurm.agent.plan import LaunchPlan, load_plan
from slurm.agent.procfs import boot_id, read_stat
from slurm.agent.ranks import RankRecord
from slurm.agent.reap import end_everything, reap_orphans
from slurm.agent.result import Ending, write_result
from slurm.agent.watch import Watchdog

_TICK_S = 0.1
_SAMPLE_S = 0.4
_HEARTBEAT_S = 1.0
_DRAIN_S = 0.5
_STOP_SIGNALS = {
    signal.SIGTERM: "cancelled",
    signal.SIGINT: "cancelled",
    signal.SIGHUP: "cancelled",
    # Schedulers announce the end of the allocated time with it.
    signal.SIGUSR2: "total_timeout",
}


class AlreadyRunError(Exception):
    """Another agent has started this trial: a second run would not be a clean measurement."""


class Trial:
    """The running parts of a trial and its clock."""

    def __init__(self, plan: LaunchPlan) -> None:
        self.plan = plan
        limit = plan.memory_limit_bytes if plan.device == "cpu" else None
        self.ranks = [
            RankRecord(rank, plan.folder, wanted=plan.total_updates, limit_bytes=limit)
            for rank in range(plan.world_size)
        ]
        self.listener = Listener(self.ranks, plan.trial_dir)
        self.launcher: subprocess.Popen[bytes] | None = None
        self.stop_reason: str | None = None
        self._next_sample = 0.0
        self._next_heartbeat = 0.0

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Ask the loop to end the trial."""
        self.stop_reason = self.stop_reason or _STOP_SIGNALS[signal.Signals(number)]

    def asked_to_stop(self) -> str | None:
        """A signal, or the file `cancel` in the trial folder."""
        if self.stop_reason is None and (self.plan.folder / "cancel").exists():
            self.stop_reason = "cancelled"
        return self.stop_reason

    def pump(self, wait_s: float) -> None:
        """Wait for records at most so long, then reap, sample and beat when due."""
        self.listener.serve(wait_s)
        reap_orphans(self.launcher, self._rank_ended)
        now = time.monotonic()
        if now >= self._next_sample:
            self._next_sample = now + _SAMPLE_S
            for rank in self.ranks:
                if rank.meter is not None and not rank.meter.gone:
                    rank.meter.sample()
        if now >= self._next_heartbeat:
            self._next_heartbeat = now + _HEARTBEAT_S
            beat = {"at": time.time(), "updates": {str(rank.rank): rank.updates for rank in self.ranks}}
            touch_json(self.plan.folder / "heartbeat", beat)

    def _rank_ended(self, pid: int, wait_status: int) -> None:
        for rank in self.ranks:
            if rank.meter is not None and rank.meter.pid == pid:
                rank.meter.gone = True
                rank.meter.set_wait_status(wait_status)

    def start(self) -> None:
        """Start the launcher.

        Raises:
            LaunchError: it could not be started.
        """
        port = free_port()
        command = with_setup(self.plan.setup, launcher_command(self.plan, port))
        environment = training_environment(self.plan, os.environ, self.listener.path, port)
        with (self.plan.folder / "launcher.log").open("ab") as log:
            self.launcher = start_launcher(self.plan, command, environment, log)

    def watch(self) -> str:
        """Serve until the launcher ends or must be ended; the reason as in result.json."""
        watchdog = Watchdog(self.plan, self.ranks, time.monotonic_ns())
        while self.launcher is not None and self.launcher.poll() is None:
            self.pump(_TICK_S)
            if not watchdog.all_ended():
                watchdog.stop_sent_ns = None  # a rank's first process had ended, another one took its place
            elif watchdog.stop_sent_ns is None:
                self.listener.send_stop()
                watchdog.stop_sent_ns = time.monotonic_ns()
            reason = self.asked_to_stop() or watchdog.verdict(time.monotonic_ns())
            if reason is not None:
                return reason
        return "exited"

    def finish(self) -> int | None:
        """Read what is left, end what still runs; the launcher's return code as of subprocess.

        Raises:
            LeftoverError: a process cannot be ended.
        """
        try:
            self.listener.drain(_DRAIN_S)
            end_everything(self.plan.trial_dir, self.pump)
            self.listener.drain(_DRAIN_S)
        finally:
            self.listener.close()
        if self.launcher is None:
            return None
        code = self.launcher.wait()
        for rank in self.ranks:
            if rank.meter is not None and rank.meter.pid == self.launcher.pid:
                rank.meter.exit_code = code
            if rank.meter is not None and rank.meter.limit_lifted:
                rank.note("the memory limit was lifted during the run")
        return code


def run(spec_path: Path) -> int:
    """Run the trial of a spec.json to its end; 0 when result.json was written.

    Raises:
        SpecError: the spec cannot be used.
        AlreadyRunError: an agent has started this trial before.
        LeftoverError: a process of the trial cannot be ended; there is no result then.
    """
    plan = load_plan(spec_path)
    _claim(plan)
    started_at, started = time.time(), time.monotonic()
    adopt_orphans()
    trial = Trial(plan)
    launch_error: str | None = None
    with _signals(trial):
        try:
            ended = trial.asked_to_stop()
            if ended is None:
                trial.start()
                ended = trial.watch()
        except LaunchError as error:
            ended, launch_error = "launch_failed", str(error)
        finally:
            returncode = trial.finish()
        wall_s = time.monotonic() - started
        ending = Ending(ended, returncode, launch_error, started_at, started_at + wall_s, wall_s)
        write_result(plan, trial.ranks, ending)
    return 0


def _claim(plan: LaunchPlan) -> None:
    stat = read_stat(os.getpid())
    record = {
        "version": 1,
        "pid": os.getpid(),
        "start_ticks": stat.start_ticks if stat else None,
        "boot_id": boot_id(),
        "host": socket.gethostname(),
        "token": plan.token,
        "started_at": time.time(),
    }
    if not claim_json(plan.folder / "job.json", record):
        raise AlreadyRunError(f"{plan.folder / 'job.json'} exists: this trial was started before")


@contextlib.contextmanager
def _signals(trial: Trial) -> Iterator[None]:
    before = {number: signal.signal(number, trial.on_signal) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
