"""The agent's side of the wire, small: accepts one connection a rank, keeps every record, runs a script."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from engine.probe.payload_files import payload_dir

SCRIPTS = Path(__file__).parent / "scripts"
RecordDict = dict[str, Any]


@dataclass
class Run:
    """What a script left behind."""

    returncode: int
    output: str
    errors: str
    ranks: dict[int, list[RecordDict]]
    refused: list[RecordDict]

    def of_kind(self, kind: str, rank: int = 0) -> list[RecordDict]:
        return [record for record in self.ranks.get(rank, []) if record["k"] == kind]

    def signature(self, when: str, rank: int = 0) -> RecordDict:
        return next(record for record in self.of_kind("signature", rank) if record["when"] == when)

    @property
    def updates(self) -> list[RecordDict]:
        return self.of_kind("update")

    @property
    def probe_errors(self) -> list[RecordDict]:
        return [
            record for records in self.ranks.values() for record in records if record["k"] == "probe_error"
        ]


@dataclass
class Agent:
    """Listens on a unix socket and answers as the node agent does."""

    path: str
    world: int
    refuse: bool
    ranks: dict[int, list[RecordDict]] = field(default_factory=dict)
    refused: list[RecordDict] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(self.path)
        self._server.listen(64)
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening; every client is gone by now, so every thread ends."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._server.close()
        for thread in self._threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._server.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with client, client.makefile("rb") as lines:
            hello = json.loads(next(lines))
            with self._lock:
                if self.refuse or hello["rank"] in self.ranks:
                    self.refused.append(hello)
                    client.sendall(b'{"k":"refuse"}\n')
                    return
                records = self.ranks.setdefault(hello["rank"], [hello])
                self._accepted.append(client)
            client.sendall(b'{"k":"accept"}\n')
            for line in _until_reset(lines):
                records.append(json.loads(line))
                if records[-1]["k"] == "end":
                    self._stop_when_all_ended()

    def _stop_when_all_ended(self) -> None:
        with self._lock:
            ended = [r for r in self.ranks.values() if r[-1]["k"] == "end"]
            if len(ended) == self.world:
                for client in self._accepted:
                    client.sendall(b'{"k":"stop"}\n')


def _until_reset(lines: Any) -> Iterator[bytes]:
    try:
        yield from lines
    except ConnectionResetError:
        return


def environment(socket_path: str | None, options: RecordDict) -> dict[str, str]:
    """The variables that an agent sets for a rank (without the rank itself)."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("INFRARSI", "COV_", "PYTHONPATH"))}
    kept |= {"PYTHONPATH": str(payload_dir()), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    if socket_path is not None:
        wanted = {
            "total_updates": 3,
            "nonce": "c0ffee",
            "perturb_ulp_seed": None,
            "signature": True,
            "stop": True,
        }
        kept |= {"INFRARSI_PROBE_SOCKET": socket_path, "INFRARSI_PROBE": json.dumps(wanted | options)}
    return kept


@pytest.fixture(scope="session")
def watch() -> Callable[..., Run]:
    """Run a script of this folder under the probe with an agent listening; equal calls share one run."""
    finished: dict[str, Run] = {}

    def cached(*arguments: str, **options: Any) -> Run:
        key = repr((arguments, sorted(options.items())))
        if key not in finished:
            finished[key] = run(*arguments, **options)
        return finished[key]

    def run(
        *arguments: str,
        ranks: int = 1,
        refuse: bool = False,
        env: dict[str, str] | None = None,
        **options: Any,
    ) -> Run:
        folder = tempfile.mkdtemp(prefix="probe")
        agent = Agent(f"{folder}/agent", ranks, refuse)
        variables = environment(agent.path, options)
        command = [sys.executable, str(SCRIPTS / arguments[0]), *arguments[1:]]
        if ranks == 1:
            variables |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
        else:
            launcher = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
            command = [*launcher, "--master-addr=127.0.0.1", f"--master-port={free_port()}", *command[1:]]
        try:
            done = subprocess.run(
                command, env=variables | (env or {}), capture_output=True, text=True, timeout=120, check=False
            )
        finally:
            agent.close()
            shutil.rmtree(folder)
        return Run(done.returncode, done.stdout, done.stderr, agent.ranks, agent.refused)

    return cached


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
