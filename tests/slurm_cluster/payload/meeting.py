"""Where the ranks of all nodes wait for each other, as in an all-reduce: a missing one stops them all."""

from __future__ import annotations

import socket
import time

_JOIN_S = 60.0


class Meeting:
    """A star of TCP connections around rank 0, at the address and port of the rendezvous."""

    def __init__(self, rank, world, address, port):
        self._peers = []
        self._center = None
        if world == 1:
            return
        if rank == 0:
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as server:
                server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                server.bind(("", port))
                server.listen(world)
                server.settimeout(_JOIN_S)
                self._peers = [server.accept()[0] for _ in range(world - 1)]
        else:
            self._center = _connect(address, port)

    def wait(self):
        """Return when every rank has come; never when one has gone, as NCCL does."""
        for peer in self._peers:
            _receive(peer)
        for peer in self._peers:
            _send(peer)
        if self._center is not None:
            _send(self._center)
            _receive(self._center)


def _connect(address, port):
    deadline = time.monotonic() + _JOIN_S
    while True:
        try:
            return socket.create_connection((address, port), timeout=_JOIN_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _send(peer):
    try:
        peer.sendall(b".")
    except OSError:
        _forever()


def _receive(peer):
    peer.settimeout(None)
    try:
        if peer.recv(1):
            return
    except OSError:
        pass
    _forever()


def _forever():
    while True:
        time.sleep(60)
