"""The one place where an agent waits: sockets and what to do when they have something."""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable


class Loop:
    """Calls back for each socket that is ready to be read."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()

    def watch(self, sock: socket.socket, ready: Callable[[], None]) -> None:
        """Call `ready` whenever the socket has something."""
        self._selector.register(sock, selectors.EVENT_READ, ready)

    def forget(self, sock: socket.socket) -> None:
        """Stop watching; before the socket is closed."""
        self._selector.unregister(sock)

    def serve(self, timeout_s: float) -> bool:
        """Handle what has arrived, waiting at most `timeout_s` for it; whether there was anything."""
        events = self._selector.select(timeout_s)
        for key, _ in events:
            # An earlier callback of this round may have closed it.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        return bool(events)

    def close(self) -> None:
        """Release the selector; the sockets stay with their owners."""
        self._selector.close()
