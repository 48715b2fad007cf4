"""One srun step: start it, start it again while the controller is away, end it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

RETRY_FOR_S = 120.0
"""Seconds over which a step is tried again that could not start because the controller was away."""
_PAUSE_S = 2.0
_TRIES = 2
"""Starts of a step that fails for another reason."""
_LAST_WORDS = 1000
_CONTROLLER_AWAY = re.compile(
    r"unable to contact|socket timed out|connection refused|connect(ion)? fail|communication connection"
    r"|temporarily (disabled|unavailable)|zero bytes|unable to confirm allocation|transport endpoint"
    r"|message receive|slurm_receive_msg|connection reset|connection timed out|nodes are busy",
    re.IGNORECASE,
)
# Set for the batch step; srun would take them for a second, different request of the same thing.
_CONFLICTING = ("SLURM_CPUS_PER_TASK", "SLURM_TRES_PER_TASK", "SLURM_NTASKS_PER_NODE", "SLURM_NTASKS")
SECONDS_TO_OBEY = 10.0
"""What an agent gets to end its trial; it needs four at most."""


@dataclass(frozen=True)
class StepEnd:
    """A step that is over: srun's exit code as of subprocess (None: never run), and srun's last words."""

    returncode: int | None
    words: str
    starts: int


class Step:
    """A step of this allocation; nothing here waits, `poll` is called until it gives the end.

    Args:
        command: srun's words.
        folder: Working folder of srun: relative output paths and `srun.log` lie there.
        has_started: Whether the step's program has run: then it is never started again.
    """

    def __init__(self, command: list[str], folder: Path, has_started: Callable[[], bool]) -> None:
        self._command = command
        self._folder = folder
        self._has_started = has_started
        self._process: subprocess.Popen[bytes] | None = None
        self._log_offset = 0
        self._starts = 0
        self._next_start = 0.0
        self._first_start = time.monotonic()
        self._signals: list[tuple[float, int]] = []
        self._is_ending = False

    def poll(self) -> StepEnd | None:
        """Start srun when it is time to, send the signals that are due; the end once it is over."""
        now = time.monotonic()
        if self._process is None:
            if self._is_ending:
                return StepEnd(None, self._words() or "ended before it could start", self._starts)
            if now < self._next_start:
                return None
            failure = self._start()
            return None if failure is None else StepEnd(None, failure, self._starts)
        returncode = self._process.poll()
        if returncode is None:
            while self._signals and now >= self._signals[0][0]:
                self._send(self._signals.pop(0)[1])
            return None
        if returncode != 0 and self._may_start_again(now):
            self._process, self._next_start = None, now + _PAUSE_S
            return None
        return StepEnd(returncode, self._words(), self._starts)

    def end(self, first: int | None) -> None:
        """End the step: `first` is forwarded to its program at once, then srun is told to kill it.

        Args:
            first: A signal number; None where the program knows already that it must end.
        """
        if self._is_ending:
            return
        self._is_ending = True
        now = time.monotonic()
        if first is not None:
            self._send(first)
        # srun takes the second TERM within a second as the wish to go at once.
        self._signals = [
            (now + SECONDS_TO_OBEY, signal.SIGTERM),
            (now + SECONDS_TO_OBEY + 0.5, signal.SIGTERM),
            (now + 3 * SECONDS_TO_OBEY, signal.SIGKILL),
        ]

    def _start(self) -> str | None:
        environment = {name: value for name, value in os.environ.items() if name not in _CONFLICTING}
        try:
            with (self._folder / "srun.log").open("ab") as log:
                self._log_offset = log.tell()
                self._process = subprocess.Popen(
                    self._command,
                    cwd=self._folder,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
        except OSError as error:
            return f"{self._command[0]} cannot be started: {error}"
        self._starts += 1
        return None

    def _may_start_again(self, now: float) -> bool:
        if self._is_ending or self._has_started():
            return False
        if _CONTROLLER_AWAY.search(self._words()):
            return now - self._first_start < RETRY_FOR_S
        return self._starts < _TRIES

    def _send(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    def _words(self) -> str:
        """What srun itself said in its last start."""
        try:
            with (self._folder / "srun.log").open("rb") as log:
                log.seek(self._log_offset)
                text = log.read()
        except OSError:
            return ""
        return text.decode(errors="replace").strip()[-_LAST_WORDS:]
