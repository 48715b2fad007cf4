"""How a run ends: end signature, end record, the barrier of all ranks, exit."""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

STOP_TIMEOUT_S = 20.0


class Ending:
    """Ends the rank once, either after the last wanted update or at interpreter exit."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._signed = False
        self._ended = False
        self._exit = os._exit

    def install(self) -> None:
        """Be there at interpreter exit, and when the script leaves through `os._exit`."""
        atexit.register(self.at_exit)

        def leave(status: int) -> NoReturn:
            self._before_hard_exit()
            self._exit(status)

        os._exit = leave

    def reached_total(self) -> None:
        """The last wanted update is closed: sign, and leave the process if the agent wants that."""
        self._sign()
        if self._session.settings.stop and not self._ended:
            self._finish("stopped", wait=True)
            if self._session.active:
                _end_children()
                _flush()
                self._exit(0)

    def at_exit(self) -> None:
        """The interpreter exits by itself; after an uncaught exception there is no end record."""
        session = self._session
        if not session.active or self._ended:
            return
        session.exceptions.at_exit()
        if session.exceptions.uncaught:
            return
        if session.updates.pending:
            session.updates.close()
        self._sign()
        reached = session.updates.index >= session.settings.total_updates
        self._finish("finished", wait=reached and session.settings.stop)

    def _before_hard_exit(self) -> None:
        """No handlers run after os._exit: send the update that waits for its next event now."""
        session = self._session
        if session.active and session.updates.pending:
            try:
                session.updates.close()
            except Exception as error:
                session.report("exit", error)

    def _finish(self, reason: str, wait: bool) -> None:
        session = self._session
        self._ended = True
        hooks_ok = clocks_ok = None
        if session.integrity is not None:
            hooks_ok, clocks_ok = (
                not session.integrity.changed_hooks(),
                not session.integrity.changed_clocks(),
            )
        fields = {
            "updates": session.updates.index,
            "reason": reason,
            "hooks_ok": hooks_ok,
            "clocks_ok": clocks_ok,
        }
        session.channel.send("end", fields)
        if wait:
            session.channel.wait_for(("stop",), STOP_TIMEOUT_S)

    def _sign(self) -> None:
        if self._signed or self._session.roots is None:
            return
        self._signed = True
        self._session.roots.sign_end()


def _end_children() -> None:
    """Terminate data loader workers and the like, which would notice our exit only after seconds."""
    multiprocessing: Any = sys.modules.get("multiprocessing")
    if multiprocessing is None:
        return
    for child in multiprocessing.active_children():
        child.terminate()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
