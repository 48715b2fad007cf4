"""Requests from outside to end the trial."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_REASONS = {
    signal.SIGTERM: "cancelled",
    signal.SIGINT: "cancelled",
    signal.SIGHUP: "cancelled",
    # Schedulers announce the end of the allocated time with it.
    signal.SIGUSR2: "total_timeout",
}


class StopRequest:
    """The first request wins; `reason` is a value of `ended` in result.json."""

    def __init__(self, folder: Path) -> None:
        self.reason: str | None = None
        self._file = folder / "cancel"

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Remember it; the loop acts."""
        self.ask(_REASONS[signal.Signals(number)])

    def ask(self, reason: str) -> None:
        """Ask for the end of the trial."""
        self.reason = self.reason or reason

    def is_cancelled_by_file(self) -> bool:
        """Whether the file `cancel` lies in the trial folder."""
        return self._file.exists()

    def asked(self) -> str | None:
        """A signal, or the file `cancel`; the head's question."""
        if self.reason is None and self.is_cancelled_by_file():
            self.reason = "cancelled"
        return self.reason

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Take the signals while this lasts."""
        before = {number: signal.signal(number, self.on_signal) for number in _REASONS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
