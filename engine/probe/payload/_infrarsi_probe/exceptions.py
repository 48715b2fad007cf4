"""Records exceptions that leave forward, backward, step or the script, even when memory is exhausted."""

from __future__ import annotations

import contextlib
import sys
import threading
from types import TracebackType
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe import memory

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

MESSAGE_LENGTH = 2000
FRAMES = 8
RESERVE_BYTES = 512 * 1024
_SEEN = "_infrarsi_seen"


class ExceptionWatch:
    """Sends one record for each exception object, wherever it is seen first."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._reserve: Optional[bytearray] = bytearray(RESERVE_BYTES)
        self.uncaught = False

    def install(self) -> None:
        """Chain in front of the hooks for exceptions that nobody caught."""
        previous, previous_thread = sys.excepthook, threading.excepthook

        def excepthook(
            kind: type[BaseException], error: BaseException, trace: Optional[TracebackType]
        ) -> Any:
            self._uncaught(error)
            return previous(kind, error, trace)

        def thread_excepthook(arguments: Any) -> Any:
            if arguments.exc_value is not None and self._session.training_thread == threading.get_ident():
                self._uncaught(arguments.exc_value)
            return previous_thread(arguments)

        sys.excepthook = excepthook
        threading.excepthook = thread_excepthook

    def note(self, phase: str, error: BaseException) -> None:
        """Record the exception unless it was recorded on its way up; never raises."""
        if not self._session.channel.is_open or getattr(error, _SEEN, False):
            return
        try:
            self._reserve = None
            with memory.RaisedDataLimit() as limit:
                with contextlib.suppress(AttributeError, TypeError):  # with slots: it may be recorded twice
                    setattr(error, _SEEN, True)
                self._session.channel.send("exception", self._fields(phase, error, limit))
                self._reserve = bytearray(RESERVE_BYTES)
        except Exception as failure:
            self._session.report("exception", failure)

    def at_exit(self) -> None:
        """Catch up on an uncaught exception whose hook the script had replaced."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self._uncaught(error)

    def _uncaught(self, error: BaseException) -> None:
        self.uncaught = True
        optimizers = self._session.optimizers
        in_step = optimizers is not None and optimizers.depth > 0
        self.note("step" if in_step else "uncaught", error)

    def _fields(self, phase: str, error: BaseException, limit: memory.RaisedDataLimit) -> dict[str, Any]:
        session = self._session
        fields: dict[str, Any] = {
            "phase": phase,
            "type": type(error).__name__,
            "mro": [base.__name__ for base in type(error).__mro__],
            "message": str(error)[:MESSAGE_LENGTH],
            "frames": _frames(error.__traceback__),
            "update": session.updates.index + (1 if session.updates.pending else 0),
            "rlimit_data": limit.soft,
            "rlimit_data_raised": limit.raised,
            "memory": None,
            "cuda_memory": None,
        }
        try:
            fields["memory"] = memory.reading(session.torch)
            fields["cuda_memory"] = memory.cuda_state(session.torch)
        except Exception as failure:
            session.report("exception memory", failure)
        return fields


def _frames(trace: Optional[TracebackType]) -> list[dict[str, Any]]:
    own = __file__.rpartition("/")[0]
    frames: list[dict[str, Any]] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        if not code.co_filename.startswith(own):
            frames.append({"file": code.co_filename, "line": trace.tb_lineno, "name": code.co_name})
        trace = trace.tb_next
    return frames[-FRAMES:]
