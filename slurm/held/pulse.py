"""Is a holder alive? Its heartbeat changes; no clocks of two machines are compared."""

from __future__ import annotations

import json
import time
from pathlib import Path

from slurm.held.holder.plan import HEARTBEAT


class Pulse:
    """Watches the heartbeat file of one allocation."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / HEARTBEAT
        self._last = b""
        self._changed = time.monotonic()

    def silent_s(self) -> float:
        """Seconds since the heartbeat was first seen as it is now; 0 when it has just changed."""
        now = time.monotonic()
        try:
            beat = self._path.read_bytes()
        except OSError:
            beat = self._last
        if beat != self._last:
            self._last, self._changed = beat, now
        return now - self._changed

    def at(self) -> float | None:
        """Time of the last beat on the holder's clock, unix seconds; None when there was none."""
        self.silent_s()
        try:
            at = json.loads(self._last)["at"]
        except (ValueError, KeyError, TypeError):
            return None
        return float(at) if isinstance(at, (int, float)) else None
