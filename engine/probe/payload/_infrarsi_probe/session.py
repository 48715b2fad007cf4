"""The state that all hooks of one rank share."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, Optional

from _infrarsi_probe import clocks
from _infrarsi_probe.channel import Channel
from _infrarsi_probe.ending import Ending
from _infrarsi_probe.exceptions import ExceptionWatch
from _infrarsi_probe.settings import Settings
from _infrarsi_probe.updates import Updates


class Session:
    """One accepted rank. Attributes typed Any belong to torch and are set by `install`."""

    def __init__(self, settings: Settings, channel: Channel) -> None:
        self.settings = settings
        self.channel = channel
        self.torch: Any = None
        self.roots: Any = None
        self.optimizers: Any = None
        self.stopwatch: Any = None
        self.digest: Any = None
        self.memory: Any = None
        self.integrity: Any = None
        self.communication: Any = None
        self.busy = [False]  # inside an outermost forward or backward; a list: read in the hottest wrapper
        self.in_backward = False
        self.training_forward = False
        self.training_thread: Optional[int] = None
        self.saw_data_loader = False
        self.probe_ns = 0
        self.unavailable: dict[str, str] = {}
        self._reported: set[str] = set()
        self.updates = Updates(self)
        self.exceptions = ExceptionWatch(self)
        self.ending = Ending(self)

    @property
    def active(self) -> bool:
        """Whether anything should still be observed."""
        return self.channel.is_open

    def event(self) -> None:
        """Something of the next update begins: close the one before, stop if it was the last wanted."""
        updates = self.updates
        if updates.pending:
            updates.close()
        if updates.index >= self.settings.total_updates:
            self.ending.reached_total()

    def is_capturing(self) -> bool:
        """Whether a CUDA graph is being recorded: nothing may be read or synchronised meanwhile."""
        torch = self.torch
        return torch is not None and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()

    def in_training_thread(self) -> bool:
        """False in helper threads such as prefetchers, once the training thread is known."""
        return self.training_thread is None or self.training_thread == threading.get_ident()

    def report(self, place: str, error: BaseException) -> None:
        """Tell the agent, once per place, that the probe itself failed there."""
        if place in self._reported:
            return
        self._reported.add(place)
        reason = ("%s: %s" % (type(error).__name__, error))[:500]
        self.unavailable[place] = reason
        self.channel.send("probe_error", {"where": place, "error": reason})

    def deactivate(self) -> None:
        """Fall silent (in a forked child): hooks stay in place and pass everything through."""
        self.channel.close()


def quietly(place: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a method of an object with a `session` account for its time and never raise into user code."""

    def decorate(method: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(method)
        def guarded(self: Any, *args: Any) -> Any:
            session = self.session
            if not session.channel.is_open or session.is_capturing():
                return None
            before, started = session.probe_ns, clocks.perf_ns()
            try:
                return method(self, *args)
            except Exception as error:
                session.report(place, error)
                return None
            finally:  # an assignment, so that nested calls do not count twice
                session.probe_ns = before + clocks.perf_ns() - started

        return guarded

    return decorate
