"""One run of the engine under the eyes of its job: signals of Slurm are passed on, its end is told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Protocol

from slurm.unattended.verdict import Asked

TIME_LIMIT_SIGNAL = signal.SIGUSR1
"""Slurm sends it to the batch script before the time limit.

Not SIGTERM: that is what scancel sends, and a job that a person cancels must not come back.
"""

DETACH_S = 75.0
"""The engine gets so long to detach; then it is killed, which its journal survives."""

_OWN_SIGNAL_S = 3.0
_POLL_S = 0.2


class Child(Protocol):
    """The part of Popen that is needed here."""

    pid: int

    def poll(self) -> int | None:
        """Exit code, None while it runs."""
        ...

    def send_signal(self, sig: int) -> None:
        """Send a signal."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


class Alarms:
    """Signals of Slurm that have come so far.

    scancel, preemption and requeueing send SIGTERM to every process of the job, the time limit its own signal
    to the batch script alone. The first one counts: what follows a time limit is our own requeue.
    """

    def __init__(self) -> None:
        self.asked = Asked.NOBODY
        self.at = 0.0

    @contextlib.contextmanager
    def heard(self) -> Iterator[Alarms]:
        """Listen, and put the handlers back afterwards."""
        old = {sig: signal.signal(sig, self._note) for sig in (TIME_LIMIT_SIGNAL, signal.SIGTERM)}
        try:
            yield self
        finally:
            for sig, handler in old.items():
                signal.signal(sig, handler)

    def wait(self, seconds: float) -> bool:
        """Pause; False when an alarm cut it short."""
        deadline = time.monotonic() + seconds
        while self.asked is Asked.NOBODY and time.monotonic() < deadline:
            time.sleep(_POLL_S)
        return self.asked is Asked.NOBODY

    def _note(self, number: int, _frame: FrameType | None) -> None:
        if self.asked is Asked.NOBODY:
            self.asked = Asked.TIME_LIMIT if number == TIME_LIMIT_SIGNAL else Asked.OUTSIDE
            self.at = time.monotonic()


def run_engine(
    command: Sequence[str], cwd: str, result: Path, alarms: Alarms, variables: Mapping[str, str]
) -> int:
    """Run the engine to its end; its JSON goes to `result`, its narration to our own stderr.

    `variables` are added to its environment.

    Returns:
        Its exit code, negative where a signal ended it; 127 where it could not be started.
    """
    partial = result.with_name(f"{result.name}.partial")
    with partial.open("wb") as stream:
        try:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env={**os.environ, **variables},
                stdin=subprocess.DEVNULL,
                stdout=stream,
            )
        except OSError as error:
            os.write(2, f"cannot start {command[0]} in {cwd}: {error.strerror}\n".encode())
            return 127
        returncode = watch(process, alarms)
    partial.replace(result)
    return returncode


def watch(process: Child, alarms: Alarms, *, detach_s: float = DETACH_S) -> int:
    """Wait for the engine; once an alarm has come, see that it detaches in time."""
    is_asked = False
    while (returncode := process.poll()) is None:
        time.sleep(_POLL_S)
        if alarms.asked is Asked.NOBODY:
            continue
        waited_s = time.monotonic() - alarms.at
        # Slurm's SIGTERM reaches the engine as well; a second one might be taken for impatience.
        if not is_asked and (alarms.asked is Asked.TIME_LIMIT or waited_s > _OWN_SIGNAL_S):
            is_asked = True
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        if waited_s > detach_s:
            process.kill()
    return returncode


def error_kind(result: Path) -> str | None:
    """The kind of error in what the engine wrote, None where it wrote none."""
    try:
        value = json.loads(result.read_bytes())
        return str(value["error"]["kind"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
