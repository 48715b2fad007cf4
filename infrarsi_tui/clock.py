"""The real clock."""

from __future__ import annotations

import time


class SystemClock:
    """Clock port on the machine's own time."""

    def now(self) -> float:
        """Unix time, seconds."""
        return time.time()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)
