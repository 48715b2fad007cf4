"""The probe's side of the socket, without torch: what the tests' training scripts say to the agent."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from typing import Any


class Speaker:
    """One connection; numbers its records like the probe does."""

    def __init__(self, rank: int | None = None, path: str | None = None) -> None:
        self.rank = int(os.environ["RANK"]) if rank is None else rank
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(20)
        self.sock.connect(path or os.environ["INFRARSI_PROBE_SOCKET"])
        self.reader = self.sock.makefile("rb")
        self.seq = 0
        self.updates = 0

    def say(self, kind: str, **content: Any) -> None:
        record = {"k": kind, "seq": self.seq, "t_ns": time.perf_counter_ns(), **content}
        self.seq += 1
        self.raw(json.dumps(record).encode() + b"\n")

    def raw(self, data: bytes) -> None:
        self.sock.sendall(data)

    def answer(self) -> str | None:
        line = self.reader.readline()
        return json.loads(line)["k"] if line else None

    def hello(self) -> str | None:
        self.say(
            "hello",
            rank=self.rank,
            local_rank=int(os.environ.get("LOCAL_RANK", "0")),
            world=int(os.environ.get("WORLD_SIZE", "1")),
            pid=os.getpid(),
            ppid=os.getppid(),
            argv=sys.argv,
            python=sys.version,
        )
        return self.answer()

    def update(self, **content: Any) -> None:
        self.say("update", i=self.updates, wall_ns=1_000_000, **content)
        self.updates += 1

    def end(self) -> None:
        self.say("end", updates=self.updates, reason="stopped", hooks_ok=True, clocks_ok=True)
        self.answer()
        sys.stdout.flush()
        os._exit(0)
