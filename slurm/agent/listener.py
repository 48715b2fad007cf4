"""The unix socket that the probes of this node's ranks talk to."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurm.agent.loop import Loop
from slurm.agent.procfs import is_descendant, read_environ
from slurm.agent.ranks import RankRecord
from slurm.agent.step_tasks import StepTasks

_CHUNK = 1 << 20
_MAX_LINE = 64 << 20
_BACKLOG = 128
_MOST_EARLY = 64
_SOCKET_ROOT = Path("/tmp")  # whatever TMPDIR says: a socket's path has to be short


def _folder_prefix(trial_dir: str) -> str:
    return f"infrarsi-{hashlib.sha256(os.fsencode(trial_dir)).hexdigest()[:12]}-"


def remove_socket_folders(trial_dir: str) -> None:
    """Remove what an agent that was killed left in the temporary folder."""
    for folder in _SOCKET_ROOT.glob(_folder_prefix(trial_dir) + "*"):
        shutil.rmtree(folder, ignore_errors=True)


class Connection:
    """One peer: who it is as the kernel says, and the bytes of its unfinished line.

    `record` is the rank that its hello was accepted for; `early` holds its lines until the rank has torch.
    """

    def __init__(self, sock: socket.socket, agent_pid: int) -> None:
        self.sock = sock
        peer = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        self.peer_pid: int
        self.peer_uid: int
        self.peer_pid, self.peer_uid, _ = struct.unpack("3i", peer)
        self.ours = is_descendant(self.peer_pid, agent_pid)
        rank = read_environ(self.peer_pid).get(b"RANK", b"")
        self.environ_rank = int(rank) if rank.isdigit() else None
        self.record: RankRecord | None = None
        self.hello: dict[str, Any] = {}
        self.hello_ns = 0
        self.early: list[tuple[bytes, int]] = []
        self.buffer = bytearray()
        self.skipping = False

    def lines(self, data: bytes) -> list[bytes]:
        """Add received bytes; return the lines that are now complete, without an oversized one."""
        searched = len(self.buffer)
        self.buffer += data
        found = []
        start = 0
        while (newline := self.buffer.find(b"\n", max(start, searched))) >= 0:
            if not self.skipping:
                found.append(bytes(self.buffer[start:newline]))
            self.skipping = False
            start = newline + 1
        del self.buffer[:start]
        if len(self.buffer) > _MAX_LINE:
            self.buffer.clear()
            self.skipping = True
        return found

    def send(self, record: dict[str, Any]) -> None:
        """Send one small record; a peer that is gone or does not read is its own loss."""
        with contextlib.suppress(OSError):
            self.sock.sendall(json.dumps(record).encode() + b"\n")


class Listener:
    """Accepts one connection per rank, from below this agent only; hands every line to its rank's record.

    Until a rank has imported torch, a process below its own may take its place: wrappers are Python too.
    The first of them gets the place back when it imports torch after all, or when the other one has ended.

    Args:
        loop: Where to wait.
        ranks: The ranks of this node.
        trial_dir: The trial folder.
        node_rank: Part of the socket's path.
        tasks: Where the ranks are tasks of a scheduler's step: who of them has registered.
    """

    def __init__(
        self,
        loop: Loop,
        ranks: Sequence[RankRecord],
        trial_dir: str,
        node_rank: int = 0,
        tasks: StepTasks | None = None,
    ) -> None:
        self._loop = loop
        self._ranks = {record.rank: record for record in ranks}
        self._tasks = tasks
        prefix = f"{_folder_prefix(trial_dir)}{node_rank}-"
        self._folder = Path(tempfile.mkdtemp(prefix=prefix, dir=_SOCKET_ROOT))
        self.path = str(self._folder / "probe.sock")
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen(_BACKLOG)
        self._server.setblocking(False)
        self._loop.watch(self._server, self._accept)
        self._connections: set[Connection] = set()
        self._waiting_tasks: list[Connection] = []
        self._holders: dict[int, Connection] = {}

    def drain(self, limit_s: float) -> None:
        """Read what the ranks left in the socket before they went."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self._loop.serve(0.0):
            pass

    def send_stop(self) -> None:
        """Tell every rank that all of them have ended."""
        for connection in self._connections:
            if connection.record is not None:
                connection.send({"k": "stop"})

    def close(self) -> None:
        """Close everything and remove the socket's folder; a second time is no harm."""
        if self._server.fileno() < 0:
            return
        for connection in list(self._connections):
            self._drop(connection)
        self._loop.forget(self._server)
        self._server.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _accept(self) -> None:
        try:
            sock, _ = self._server.accept()
        except OSError:
            return
        connection = Connection(sock, os.getpid())
        if not connection.ours and self._tasks is not None:
            connection.ours = self._tasks.owns(connection.peer_pid)
        sock.setblocking(False)
        self._connections.add(connection)
        self._loop.watch(sock, lambda: self._read(connection))

    def _read(self, connection: Connection) -> None:
        try:
            data = connection.sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        arrived_ns = time.monotonic_ns()
        if not data:
            self._drop(connection)
            return
        for line in connection.lines(data):
            if connection.record is not None:
                if not self._take(connection, connection.record, line, arrived_ns):
                    self._drop(connection)
                    return
            elif not self._greet(connection, line, arrived_ns):
                connection.send({"k": "refuse"})
                self._drop(connection)
                return
        if connection.skipping:
            self._note(connection.record, f"a line longer than {_MAX_LINE} bytes was dropped")

    def _greet(self, connection: Connection, line: bytes, arrived_ns: int) -> bool:
        """Judge the first line of a peer; True when it is now the rank's connection."""
        try:
            hello = json.loads(line)
        except (ValueError, RecursionError):
            hello = None
        record = self._rank(hello.get("rank")) if isinstance(hello, dict) else None
        if isinstance(hello, dict) and hello.get("k") == "task":
            return self._register(connection, hello)
        if not connection.ours:
            self._note(record, f"process {connection.peer_pid} from outside the trial was refused")
            return False
        own = self._rank(connection.environ_rank)
        if not isinstance(hello, dict) or hello.get("k") != "hello" or record is None:
            self._note(own, f"process {connection.peer_pid}: no usable hello: {line[:80]!r}")
            return False
        if own is not None and own is not record:
            self._note(
                own, f"process {connection.peer_pid} of rank {own.rank} said hello as rank {record.rank}"
            )
            return False
        if record.connected and not self._gives_way(record, connection):
            return False  # a data loader or compile worker of the rank: expected, and stays inert
        connection.record, connection.hello, connection.hello_ns = record, hello, arrived_ns
        self._seat(connection, record)
        connection.send({"k": "accept"})
        return True

    def _register(self, connection: Connection, message: dict[str, Any]) -> bool:
        """Take a task of the step in; all of them may go on when the last one is there."""
        if self._tasks is None:
            refusal: str | None = "this trial has no tasks"
        else:
            refusal = self._tasks.register(connection.peer_pid, connection.peer_uid, message)
        if self._tasks is None or refusal is not None:
            self._note(None, f"process {connection.peer_pid} was not registered as a task: {refusal}")
            return False
        self._waiting_tasks.append(connection)
        if self._tasks.complete:
            for each in self._waiting_tasks:
                each.send({"k": "go"})
            self._waiting_tasks.clear()
        return True

    def _gives_way(self, record: RankRecord, newcomer: Connection) -> bool:
        """Whether the rank's process looks like a wrapper: no torch, and gone or above the newcomer."""
        if record.has_torch or record.meter is None:
            return False
        record.meter.read_cpu()
        return record.closed or record.meter.gone or is_descendant(newcomer.peer_pid, record.meter.pid)

    def _seat(self, connection: Connection, record: RankRecord) -> None:
        """Make this the rank's connection, with all that it said so far."""
        self._holders[record.rank] = connection
        record.open(connection.hello, connection.peer_pid, connection.hello_ns)
        for line, arrived_ns in connection.early:
            record.take(line, arrived_ns)

    def _take(self, connection: Connection, record: RankRecord, line: bytes, arrived_ns: int) -> bool:
        """One line of an accepted peer; False when another one has taken its place for good."""
        is_holder = self._holders[record.rank] is connection
        if record.has_torch:
            if is_holder:
                record.take(line, arrived_ns)
            return is_holder
        kind = _kind(line)
        if len(connection.early) < _MOST_EARLY or kind == "torch":
            connection.early.append((line, arrived_ns))
        if not is_holder:
            if kind == "torch":
                self._seat(connection, record)
        elif kind != "end" or not self._waiting(connection):  # the one that waits says when the rank ends
            record.take(line, arrived_ns)
        return True

    def _waiting(self, holder: Connection) -> list[Connection]:
        """Peers of the rank that gave way to the holder and still run."""
        return [
            each
            for each in self._connections
            if each is not holder and each.record is not None and each.record is holder.record
        ]

    def _rank(self, rank: object) -> RankRecord | None:
        return self._ranks.get(rank) if isinstance(rank, int) and not isinstance(rank, bool) else None

    def _note(self, record: RankRecord | None, error: str) -> None:
        if record is not None:
            record.note(error)
        else:
            print(f"slurm.agent: {error}", file=sys.stderr, flush=True)

    def _drop(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._connections.discard(connection)
        self._loop.forget(connection.sock)
        record = connection.record
        if record is not None and self._holders[record.rank] is connection:
            if connection.buffer:
                record.note(f"unfinished line of {len(connection.buffer)} bytes at the end")
            waiting = [] if record.has_torch else self._waiting(connection)
            if waiting:
                self._seat(max(waiting, key=lambda each: each.hello_ns), record)
            else:
                record.close()
        connection.sock.close()


def _kind(line: bytes) -> object:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record.get("k") if isinstance(record, dict) else None
