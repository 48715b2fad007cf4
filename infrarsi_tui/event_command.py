"""The user's own command for events of a study: a mail, a message, a line in a file."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

from engine.stages.hooks import StudyEvent
from slurm.agent.environment import scrubbed

TIMEOUT_S = 60.0
_LAST_WORDS = 200


class EventCommand:
    """Runs a shell command in the background at each event; what goes wrong with it is only told.

    The command finds INFRARSI_EVENT and INFRARSI_STUDY in its environment, which holds no keys and no
    variables of a job. After `timeout_s` seconds it is killed with everything that it started.

    Args:
        command: A line for /bin/sh; None = nothing is run.
        study: The study's folder.
        say: Takes one sentence for a person.
    """

    def __init__(
        self,
        command: str | None,
        study: Path,
        say: Callable[[str], None],
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._command = command
        self._study = study
        self._say = say
        self._timeout_s = timeout_s
        self._threads: list[threading.Thread] = []

    def happened(self, event: StudyEvent) -> None:
        """Start the command for an event; returns at once."""
        if self._command is None:
            return
        environment = scrubbed(os.environ)
        environment.update(INFRARSI_EVENT=event.value, INFRARSI_STUDY=str(self._study))
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            self._say(f"--on-event could not be run for {event.value}: {error}")
            return
        thread = threading.Thread(
            target=self._attend, args=(process, event), name=f"on-event-{event.value}", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def finish(self) -> None:
        """Wait for commands that still run, each no longer than its time limit."""
        for thread in self._threads:
            thread.join(self._timeout_s + 5.0)

    def _attend(self, process: subprocess.Popen[bytes], event: StudyEvent) -> None:
        try:
            _, words = process.communicate(timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            self._say(f"--on-event was killed after {self._timeout_s:.0f} s ({event.value})")
            return
        if process.returncode != 0:
            last = words.decode(errors="replace").strip()[-_LAST_WORDS:]
            self._say(f"--on-event failed for {event.value} with {process.returncode}: {last or 'no words'}")
