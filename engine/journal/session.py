"""StudySession: a study that this process writes: its folder, its epoch, its state."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType

from engine.errors import StudyBusyError
from engine.journal import lease
from engine.journal.folder import StudyFolder
from engine.journal.heartbeat import Heartbeat
from engine.journal.log import JournalWriter, read_entries
from engine.journal.requests import take_requests
from engine.journal.state import StudyState, replay
from engine.ports import Clock
from engine.schema.study import Entry, EpochStarted, Event

Observer = Callable[[Entry, StudyState], None]


class StopRequested(Exception):
    """A person asked the engine to stop; caught by the study loop."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Detached(BaseException):
    """The engine leaves: its jobs run on and the study stays as it is, for `resume` to go on with.

    Like an interrupt it is no error: nothing but the front end catches it.
    """


class StudySession:
    """The only way to change a study.

    Raises:
        StudyBusyError: on entry, when another live engine owns the study.
        IntegrityError: when the journal does not parse.
    """

    def __init__(self, folder: StudyFolder, clock: Clock, observer: Observer | None = None) -> None:
        self.folder = folder
        self.clock = clock
        self._observer = observer
        self._last_look = clock.now()
        self._is_leaving = False
        self.epoch = lease.claim_epoch(folder.journal)
        self._heartbeat = Heartbeat(folder.journal, self.epoch, lease.HEARTBEAT_S)
        try:
            take_requests(folder.requests)  # they were meant for an earlier engine
            self.state = replay(read_entries(folder.journal))
            self._writer = JournalWriter(folder.journal, self.epoch)
            self.record(EpochStarted(epoch=self.epoch, host=socket.gethostname(), pid=os.getpid()))
        except Exception:
            self._give_up()
            raise

    def __enter__(self) -> StudySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        self._give_up()

    def record(self, event: Event) -> None:
        """Append an event durably, then show it.

        Raises:
            StudyBusyError: another engine took the study over; nothing is written.
            DiskFullError: no space is left.
        """
        self._require_ownership()
        entry = self._writer.append(event, self.clock.now())
        self.state.apply(entry)
        if self._observer is not None:
            self._observer(entry, self.state)

    def heartbeat(self) -> None:
        """Look whether the study is still ours, and for requests; call it at least every few seconds.

        Raises:
            Detached: `detach` was called.
            StopRequested: a stop request was waiting.
            StudyBusyError: another engine took the study over while this one was away.
        """
        if self._is_leaving:
            raise Detached
        now = self.clock.now()
        if now - self._last_look >= lease.HEARTBEAT_S:
            self._last_look = now
            self._require_ownership()
        for request in take_requests(self.folder.requests):
            if request.kind == "stop":
                raise StopRequested(request.reason)

    def detach(self) -> None:
        """Have the next heartbeat raise Detached; safe to call from a signal handler."""
        self._is_leaving = True

    def _require_ownership(self) -> None:
        if lease.latest_epoch(self.folder.journal) == self.epoch:
            return
        message = "another engine took this study over"
        if self._heartbeat.problem is not None:
            message += f"; this one could not say that it lives: {self._heartbeat.problem}"
        raise StudyBusyError(
            message, file=str(self.folder.root), hint="`infrarsi status` shows where it stands"
        )

    def _give_up(self) -> None:
        self._heartbeat.stop()
        lease.release(self.folder.journal, self.epoch)
