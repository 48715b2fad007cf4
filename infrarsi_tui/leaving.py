"""How a person or the system ends a command, and what is said about it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from infrarsi_tui.streams import narrate

_LEAVING = (signal.SIGTERM, signal.SIGHUP)


class LeftStudy(Exception):
    """A command ended before its study did; `kind` is that of the JSON error."""

    def __init__(self, message: str, *, hint: str, kind: str = "interrupted") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.kind = kind


@contextlib.contextmanager
def signals_handled(detach: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGHUP ask the engine to leave its jobs alone and go; the same again ends it at once.

    The first Ctrl-C raises KeyboardInterrupt, which cancels the jobs; a second one interrupts even that, a
    third ends the process. What the caller has ignored (`nohup`) stays ignored.

    Args:
        detach: Called in the signal handler; must only take a note.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        detach()

    presses = 0

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal presses
        presses += 1
        if presses == 1:
            narrate("stopping: running trials are cancelled; Ctrl-C again leaves at once")
        else:
            signal.signal(number, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {}
    for number in (*_LEAVING, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, interrupt if number is signal.SIGINT else leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
