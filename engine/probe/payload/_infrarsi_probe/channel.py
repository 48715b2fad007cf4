"""The connection to the node agent: one JSON object a line over a unix stream socket."""

from __future__ import annotations

import json
import select
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any, Optional

from _infrarsi_probe import clocks

SEND_TIMEOUT_S = 60


class Channel:
    """Sends records in order, waits for the agent's few answers; after a failure it is closed for good."""

    def __init__(self, path: str) -> None:
        self._lock = threading.RLock()
        self._sequence = 0
        self._received = b""
        self._socket: Optional[socket.socket] = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@qq", SEND_TIMEOUT_S, 0))
        self._socket.connect(path)

    @property
    def is_open(self) -> bool:
        """False once the agent is gone, refused us, or this process is a fork of the rank."""
        return self._socket is not None

    def send(self, kind: str, fields: dict[str, Any]) -> bool:
        """Send one record; False when the agent cannot be reached any more."""
        with self._lock:
            if self._socket is None:
                return False
            record = {"k": kind, "seq": self._sequence, "t_ns": clocks.perf_ns()}
            record.update(fields)
            line = json.dumps(record, default=str, separators=(",", ":"))
            try:
                self._socket.sendall(line.encode("utf-8", "replace") + b"\n")
            except OSError:
                self.close()
                return False
            self._sequence += 1
            return True

    def wait_for(self, kinds: Sequence[str], timeout_s: float) -> Optional[str]:
        """The first of `kinds` that the agent says, None on timeout or when it hung up."""
        deadline = clocks.monotonic_ns() + int(timeout_s * 1e9)
        while self._socket is not None:
            while b"\n" in self._received:
                line, self._received = self._received.split(b"\n", 1)
                kind = _kind_of(line)
                if kind in kinds:
                    return kind
            remaining = (deadline - clocks.monotonic_ns()) / 1e9
            if remaining <= 0:
                return None
            try:
                if not select.select([self._socket], [], [], remaining)[0]:
                    return None
                data = self._socket.recv(65536)
            except OSError:
                return None
            if not data:
                return None
            self._received += data
        return None

    def close(self) -> None:
        """Forget the connection; later records are dropped."""
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()


def _kind_of(line: bytes) -> Optional[str]:
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    kind = answer.get("k") if isinstance(answer, dict) else None
    return kind if isinstance(kind, str) else None
