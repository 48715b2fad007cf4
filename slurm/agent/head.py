"""The control channel as the head sees it: who joined, what each node says, who is gone."""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass, field
from typing import Any

from slurm.agent.loop import Loop
from slurm.agent.member import BEAT_S, SILENCE_S
from slurm.agent.ports import control_ports
from slurm.agent.wire import MESSAGE_BYTES, Link, is_proof, new_nonce, proof

_GREETING_S = 5.0
_MOST_STRANGERS = 64


class ControlPortError(Exception):
    """None of the candidate ports could be bound."""


@dataclass
class NodeState:
    """What the head knows of one other node. Times are nanoseconds of the head's CLOCK_MONOTONIC.

    `has_joined` from its first facts on: before them a lost connection is only an attempt. `lost` says why
    it counts as gone; `offset_ns` turns its clock into the head's, at most one network latency too high.
    """

    rank: int
    link: Link | None = None
    reached: str | None = None
    has_joined: bool = False
    facts: dict[str, Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    state_ns: int = 0
    report: dict[str, Any] | None = None
    lost: str | None = None
    heard_ns: int = 0
    silent_s: float = 0.0
    offset_ns: int | None = None

    @property
    def is_awaited(self) -> bool:
        """Whether its report may still come."""
        return self.link is not None and self.lost is None and self.report is None


class _Stranger:
    """A connection that has not proved anything yet."""

    def __init__(self, sock: socket.socket, reached: str) -> None:
        self.link = Link(sock)
        self.reached = reached
        self.nonce = new_nonce()
        self.age_s = 0.0
        self.link.send("nonce", nonce=self.nonce)


class Head:
    """Accepts the other nodes of a trial and keeps what they say."""

    def __init__(self, loop: Loop, token: str, nodes: int) -> None:
        self.nodes = {rank: NodeState(rank) for rank in range(1, nodes)}
        self.signals: list[str] = []
        self._loop = loop
        self._token = token
        self._strangers: list[_Stranger] = []
        self._since_beat_s = 0.0
        self._server = _bind(token)
        self._server.setblocking(False)
        self.port: int = self._server.getsockname()[1]
        loop.watch(self._server, self._accept)

    def ready(self) -> list[NodeState]:
        """The nodes that have told their facts."""
        return [node for node in self.nodes.values() if node.facts is not None]

    def lost(self) -> list[NodeState]:
        """The nodes that are gone without their report."""
        return [node for node in self.nodes.values() if node.lost and node.report is None]

    def tell(self, kind: str, **content: Any) -> None:
        """Send an order to every node that is there."""
        for node in self.nodes.values():
            if node.link is not None and node.lost is None:
                node.link.send(kind, **content)

    def tick(self, elapsed_s: float) -> None:
        """Beat, send what is left, find out who is gone; to be called after each round of the loop.

        Args:
            elapsed_s: Running time since the last call: while suspended, the head has not waited for anyone.
        """
        self._since_beat_s += elapsed_s
        if self._since_beat_s >= BEAT_S:
            self._since_beat_s = 0.0
            self.tell("beat")
        for node in self.nodes.values():
            if node.link is None or node.lost:
                continue
            node.link.flush()
            node.silent_s += elapsed_s
            if node.link.broken:
                self._lose(node, "its agent closed the connection without a report")
            elif node.silent_s > SILENCE_S:
                self._lose(node, f"its agent said nothing for {SILENCE_S:.0f} s")
        for stranger in list(self._strangers):
            stranger.age_s += elapsed_s
            if stranger.age_s > _GREETING_S:
                self._dismiss(stranger)

    def is_flushed(self) -> bool:
        """Whether everything that was told has left."""
        links = [node.link for node in self.nodes.values() if node.link is not None and node.lost is None]
        return not any(link.pending for link in links)

    def close(self) -> None:
        """Say no more."""
        for stranger in list(self._strangers):
            self._dismiss(stranger)
        for node in self.nodes.values():
            self._drop(node)
        self._loop.forget(self._server)
        self._server.close()

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
            reached = sock.getsockname()[0]
        except OSError:
            return
        if len(self._strangers) >= _MOST_STRANGERS:
            sock.close()
            return
        stranger = _Stranger(sock, reached)
        self._strangers.append(stranger)
        self._loop.watch(sock, lambda: self._judge(stranger))

    def _judge(self, stranger: _Stranger) -> None:
        """Admit a connection that proves its node's knowledge of the token, dismiss any other."""
        messages = stranger.link.receive()
        if not messages and not stranger.link.broken:
            return
        join = messages[0] if messages else {}
        rank, mine = join.get("node"), join.get("nonce")
        node = self.nodes.get(rank) if isinstance(rank, int) else None
        if node is None or node.link is not None or join.get("k") != "join" or not isinstance(mine, str):
            self._dismiss(stranger)
            return
        if not is_proof(join.get("proof"), proof(self._token, "node", node.rank, mine, stranger.nonce)):
            self._dismiss(stranger)
            return
        self._strangers.remove(stranger)
        link = stranger.link
        link.limit = MESSAGE_BYTES
        node.link, node.reached, node.heard_ns = link, stranger.reached, time.monotonic_ns()
        self._loop.forget(link.sock)
        self._loop.watch(link.sock, lambda: self._read(node, link))
        link.send("welcome", proof=proof(self._token, "head", node.rank, stranger.nonce, mine))

    def _read(self, node: NodeState, link: Link) -> None:
        for message in link.receive():
            self._take(node, message)
        if link.broken and node.link is link and node.lost is None:
            self._lose(node, "its agent closed the connection without a report")

    def _take(self, node: NodeState, message: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        node.heard_ns, node.silent_s = now_ns, 0.0
        kind = message["k"]
        if kind == "state":
            node.state, node.state_ns = message, now_ns
            if isinstance(message.get("now_ns"), int):
                offset_ns = now_ns - message["now_ns"]
                node.offset_ns = offset_ns if node.offset_ns is None else min(node.offset_ns, offset_ns)
        elif kind == "ready":
            node.facts, node.has_joined = message, True
        elif kind == "report":
            node.report = message
        elif kind == "signal":
            self.signals.append(str(message.get("reason")))

    def _lose(self, node: NodeState, why: str) -> None:
        self._drop(node)
        if node.has_joined:
            node.lost = why
        else:
            node.link, node.silent_s = None, 0.0  # it tries again

    def _drop(self, node: NodeState) -> None:
        if node.link is not None and node.link.sock.fileno() >= 0:
            self._loop.forget(node.link.sock)
            node.link.close()

    def _dismiss(self, stranger: _Stranger) -> None:
        self._strangers.remove(stranger)
        self._loop.forget(stranger.link.sock)
        stranger.link.close()


def _bind(token: str) -> socket.socket:
    """Listen on the first candidate port that is free.

    Raises:
        ControlPortError: all are taken.
    """
    candidates = control_ports(token)
    for port in candidates:
        server = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended hold it
            server.bind(("", port))
            server.listen(_MOST_STRANGERS)
        except OSError:
            server.close()
            continue
        return server
    raise ControlPortError(f"none of the control ports {candidates} is free on this node")
