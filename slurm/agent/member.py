"""The control channel as the other nodes see it: find the head, obey, report, notice when it is gone."""

from __future__ import annotations

import collections
import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

from slurm.agent.address import HeadPlaces
from slurm.agent.loop import Loop
from slurm.agent.wire import GREETING_BYTES, MESSAGE_BYTES, Link, is_proof, new_nonce, proof

SILENCE_S = 15.0
"""Seconds of running time without a word after which the other side counts as gone."""

BEAT_S = 1.0

_CONNECT_S = 1.0
_GREETING_S = 5.0
_PAUSE_S = 0.2


class HeadLostError(Exception):
    """The head of the trial was not found, or is gone."""


class _UnreachableError(Exception):
    """Nothing answers under an address, whatever the port."""


class Member:
    """This node's side of the channel.

    `describe()` is the state that the head is told: at every change of its `"events"`, and once a second.
    """

    def __init__(self, loop: Loop, sock: socket.socket, describe: Callable[[], dict[str, Any]]) -> None:
        self._loop = loop
        self._link = Link(sock)
        self._link.limit = MESSAGE_BYTES
        self._describe = describe
        self._orders: collections.deque[dict[str, Any]] = collections.deque()
        self._silent_s = 0.0
        self._since_beat_s = BEAT_S
        self._last_events: Any = None
        loop.watch(sock, self._read)

    @property
    def lost(self) -> bool:
        """Whether the head is gone: closed, or silent for too long."""
        return self._link.broken or self._silent_s > SILENCE_S

    def next_order(self) -> dict[str, Any] | None:
        """The oldest order that was not taken yet."""
        return self._orders.popleft() if self._orders else None

    def send(self, kind: str, **content: Any) -> None:
        """Tell the head something."""
        self._link.send(kind, **content)

    def tick(self, elapsed_s: float) -> None:
        """Beat, send what is left; to be called after each round of the loop.

        Args:
            elapsed_s: Running time since the last call: a suspended agent has not waited.
        """
        self._silent_s += elapsed_s
        self._since_beat_s += elapsed_s
        state = self._describe()
        if state.get("events") != self._last_events or self._since_beat_s >= BEAT_S:
            self._last_events = state.get("events")
            self._since_beat_s = 0.0
            self._link.send("state", now_ns=time.monotonic_ns(), **state)
        self._link.flush()

    def close(self) -> None:
        """Leave."""
        if self._link.sock.fileno() >= 0:
            self._loop.forget(self._link.sock)
        self._link.close()

    def _read(self) -> None:
        messages = self._link.receive()
        if messages:
            self._silent_s = 0.0
        self._orders.extend(message for message in messages if message["k"] != "beat")
        if self._link.broken:
            self._loop.forget(self._link.sock)
            self._link.close()


def find_head(
    places: HeadPlaces, token: str, node: int, limit_s: float, should_stop: Callable[[], bool]
) -> socket.socket:
    """Try every candidate until the head has proved that it is the head of this trial.

    Raises:
        HeadLostError: not found within the limit, or told to stop before.
    """
    deadline = time.monotonic() + limit_s
    tried: list[str] = []
    while time.monotonic() < deadline:
        tried = []
        for address, ports in places.candidates():
            tried.append(address)
            for port in ports:
                if should_stop():
                    raise HeadLostError("told to stop before the head of the trial was found")
                try:
                    sock = _connect(address, port, token, node)
                except _UnreachableError:
                    break  # nothing answers there at all: the other ports will not either
                if sock is not None:
                    return sock
        time.sleep(_PAUSE_S)
    raise HeadLostError(
        f"the head of the trial did not answer within {limit_s:.0f} s at {', '.join(tried)}; "
        "hint: can this node open TCP connections to the first node of the job?"
    )


def _connect(address: str, port: int, token: str, node: int) -> socket.socket | None:
    """A connection that the head accepted; None when something else, or nothing, listens there.

    Raises:
        _UnreachableError: no machine answered under this address.
    """
    try:
        sock = socket.create_connection((address, port), timeout=_CONNECT_S)
    except ConnectionRefusedError:
        return None
    except OSError as error:
        raise _UnreachableError(f"{address}: {error}") from error
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        sock.settimeout(_GREETING_S)
        if _shake_hands(sock, token, node):
            return sock
    sock.close()
    return None


def _shake_hands(sock: socket.socket, token: str, node: int) -> bool:
    theirs = str(json.loads(_line(sock))["nonce"])
    mine = new_nonce()
    mac = proof(token, "node", node, mine, theirs)
    sock.sendall(json.dumps({"k": "join", "node": node, "nonce": mine, "proof": mac}).encode() + b"\n")
    answer = json.loads(_line(sock))
    return is_proof(answer.get("proof"), proof(token, "head", node, theirs, mine))


def _line(sock: socket.socket) -> bytes:
    """One short line, read byte by byte: what follows it belongs to the messages."""
    line = b""
    while not line.endswith(b"\n") and len(line) < GREETING_BYTES:
        byte = sock.recv(1)
        if not byte:
            raise OSError("closed")
        line += byte
    return line
