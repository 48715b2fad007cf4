"""The pulse of an open study: a thread that keeps its lease fresh, whatever the engine is busy with."""

from __future__ import annotations

import threading
from pathlib import Path

from engine.errors import InfraError
from engine.journal import lease

_JOIN_S = 10.0


class Heartbeat:
    """Beats the lease of an epoch until it is stopped, or until a newer epoch makes that pointless.

    A beat that fails is noted in `problem` and tried again; it never disturbs the engine.

    Args:
        journal: The study's journal folder.
        epoch: The claimed epoch.
        every_s: Seconds between two beats.
    """

    def __init__(self, journal: Path, epoch: int, every_s: float) -> None:
        self.problem: str | None = None
        self._journal = journal
        self._epoch = epoch
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=f"heartbeat-{epoch}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; returns when no further beat can come, unless the disk hangs."""
        self._stopped.set()
        self._thread.join(_JOIN_S)

    def _beat(self) -> None:
        while not self._stopped.wait(self._every_s):
            try:
                if lease.latest_epoch(self._journal) != self._epoch:
                    return
                lease.beat(self._journal, self._epoch)
            except (InfraError, OSError) as error:
                self.problem = str(error)
            else:
                self.problem = None
