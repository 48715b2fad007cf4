"""One connection between two agents: JSON objects a line each, and a handshake that shows no secret."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import secrets
import socket
from typing import Any

GREETING_BYTES = 4096
"""Longest line before the handshake is over."""

MESSAGE_BYTES = 64 << 20
"""Longest line, and most that waits to be sent, after it."""

_CHUNK = 1 << 20


class Link:
    """Sends and receives without ever blocking. `limit` is the length at which a line ends the connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = sock
        self.limit = GREETING_BYTES
        self.broken = False
        self._incoming = bytearray()
        self._outgoing = bytearray()

    @property
    def pending(self) -> bool:
        """Whether something is left to be sent."""
        return bool(self._outgoing) and not self.broken

    def send(self, kind: str, **content: Any) -> None:
        """Queue one message and send what can be sent."""
        self._outgoing += json.dumps({"k": kind, **content}).encode() + b"\n"
        if len(self._outgoing) > MESSAGE_BYTES:
            self.broken = True
        self.flush()

    def flush(self) -> None:
        """Send what the other side takes now."""
        while self._outgoing and not self.broken:
            try:
                sent = self.sock.send(self._outgoing[:_CHUNK])
            except BlockingIOError:
                return
            except OSError:
                self.broken = True
                return
            del self._outgoing[:sent]

    def receive(self) -> list[dict[str, Any]]:
        """The messages that are complete now; `broken` says when no more will come."""
        try:
            data = self.sock.recv(_CHUNK)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.broken = True
        self._incoming += data
        *lines, self._incoming = self._incoming.split(b"\n")
        messages = [_message(line) for line in lines]
        found = [message for message in messages if message is not None]
        if len(found) < len(messages) or len(self._incoming) > self.limit:
            self.broken = True
        return found

    def close(self) -> None:
        """Close the connection; what was not sent is lost."""
        self.sock.close()


def _message(line: bytearray) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and isinstance(message.get("k"), str) else None


def new_nonce() -> str:
    """A number that was never used before."""
    return secrets.token_hex(16)


def proof(token: str, role: str, node: int, mine: str, theirs: str) -> str:
    """Shows that one knows the trial's token: an HMAC over both nonces, the role and the node."""
    text = f"{role}\n{node}\n{mine}\n{theirs}".encode()
    return hmac.new(token.encode(), text, hashlib.sha256).hexdigest()


def is_proof(given: object, expected: str) -> bool:
    """Compare in constant time; anything but a string is wrong."""
    return isinstance(given, str) and hmac.compare_digest(given.encode(), expected.encode())
