"""StudySession: a study that this process writes: its folder, its epoch, its state."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from types import TracebackType

from engine.errors import StudyBusyError
from engine.journal import lease
from engine.journal.folder import StudyFolder
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
        self._last_beat = clock.now()
        epoch = lease.claim_epoch(folder.journal)
        self.state = replay(read_entries(folder.journal))
        self._writer = JournalWriter(folder.journal, epoch)
        self.record(EpochStarted(epoch=epoch, host=socket.gethostname(), pid=os.getpid()))

    def __enter__(self) -> StudySession:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._writer.close()
        lease.release(self.folder.journal, self._writer.epoch)

    def record(self, event: Event) -> None:
        """Append an event durably, then show it."""
        entry = self._writer.append(event, self.clock.now())
        self.state.apply(entry)
        if self._observer is not None:
            self._observer(entry, self.state)

    def heartbeat(self) -> None:
        """Keep the lease alive and look for requests; call it at least every few seconds.

        Raises:
            StopRequested: a stop request was waiting.
            StudyBusyError: another engine took the study over while this one was away.
        """
        now = self.clock.now()
        if now - self._last_beat >= lease.HEARTBEAT_S:
            self._last_beat = now
            newest = lease.latest_epoch(self.folder.journal)
            if newest != self._writer.epoch:
                raise StudyBusyError(
                    "another engine took this study over",
                    file=str(self.folder.root),
                    hint="`infrarsi attach`",
                )
            lease.beat(self.folder.journal, self._writer.epoch)
        for request in take_requests(self.folder.requests):
            if request.kind == "stop":
                raise StopRequested(request.reason)
