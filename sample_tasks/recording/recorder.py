"""Runs configurations and appends what was measured to a file."""

from __future__ import annotations

import itertools
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from recording.ranks import WARMUP_UPDATES
from recording.sample import Configuration, Sample

Measurement = dict[str, Any]
KIB_PER_GIB = 1 << 20
MEMORY_MESSAGES = (
    "can't allocate memory",
    "Cannot allocate memory",
    "bad_alloc",
    "Resource temporarily unavailable",
)
PRIMITIVE_MESSAGE = (
    "could not create a primitive"  # oneDNN, also out of memory; a real conflict far from the limit
)
PEER_LOST = ("Connection closed by peer", "Connection reset by peer", "Socket closed", "Broken pipe")
FIXED_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


class Recorder:
    """Measures configurations of one sample; known measurements are read back on start.

    Args:
        out: Folder of NAME.measurements.jsonl and of a scratch folder with the last trial's logs.
        timeout_s: A trial that takes longer is killed.
    """

    def __init__(self, sample: Sample, out: Path, timeout_s: float) -> None:
        self.sample, self.out, self.timeout_s = sample, out, timeout_s
        self.name = sample.task["task"]["name"] + "-cpu"
        self.scratch = out / f"{self.name}.scratch"
        (self.scratch / "trial").mkdir(parents=True, exist_ok=True)
        self.file = out / f"{self.name}.measurements.jsonl"
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.measurements: list[Measurement] = [json.loads(line) for line in lines]
        self.servers = dict[tuple[tuple[str, str], ...], subprocess.Popen[str]]()

    def run(self, configuration: Configuration, purpose: str) -> Measurement:
        """Measure one configuration and append it."""
        folder = self.scratch / "trial"
        for old in [*folder.glob("*.json"), *folder.glob("log.*")]:
            old.unlink()
        server = self.server(self.sample.write(configuration, folder / "config.toml"))
        request = {
            "folder": str(folder),
            "ranks": self.sample.ranks,
            "port": free_port(),
            "limit_gib": self.sample.task["allocation"]["memory_limit_gib"],
            "timeout_s": self.timeout_s,
        }
        started = time.monotonic()
        answer = ask(server, request)
        row = {
            "purpose": purpose,
            "configuration": configuration,
            "cost_s": round(time.monotonic() - started, 2),
            "load": os.getloadavg()[0],
            **outcome(folder, request["ranks"], request["limit_gib"], answer),
        }
        self.measurements.append(row)
        with self.file.open("a") as sink:
            sink.write(json.dumps(row) + "\n")
        return row

    def server(self, environment: dict[str, str]) -> subprocess.Popen[str]:
        """The process with torch imported under this environment: allocators read theirs at process start."""
        key = tuple(sorted(environment.items()))
        if key not in self.servers:
            cache = {"TORCHINDUCTOR_CACHE_DIR": str(self.scratch / "inductor")}
            with (self.scratch / "server.log").open("a") as log:
                self.servers[key] = subprocess.Popen(
                    [sys.executable, "-m", "recording.ranks", str(self.sample.folder)],
                    cwd=Path(__file__).parents[1],
                    env={**os.environ, **FIXED_ENVIRONMENT, **cache, **environment},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            stdout = self.servers[key].stdout
            if stdout is None or stdout.readline().strip() != "ready":
                raise SystemExit(f"torch could not be imported; see {self.scratch / 'server.log'}")
        return self.servers[key]

    def stop(self) -> None:
        """End the processes that hold torch."""
        for server in self.servers.values():
            server.communicate()
        self.servers.clear()


def ask(server: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any]:
    """One request, one answer."""
    if server.stdin is None or server.stdout is None:
        raise SystemExit("the process that holds torch has no pipes")
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    answer: dict[str, Any] = json.loads(server.stdout.readline())
    return answer


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def outcome(folder: Path, ranks: int, limit_gib: float, answer: dict[str, Any]) -> Measurement:
    """What the files of the ranks say: timings, or the error of the rank that failed first."""
    results = [json.loads(path.read_text()) for path in folder.glob("result.*.json")]
    peak = max([answer["peak_kib"], *(r["vmdata_kib"] for r in results)]) / KIB_PER_GIB
    row: Measurement = {"peak_mem_gib": round(peak, 4), "status": "ok", "message": ""}
    if len(results) == ranks:
        wall = [max(update) for update in zip(*(differences(r["wall"]) for r in results), strict=True)]
        cpu = [sum(update) for update in zip(*(differences(r["cpu"]) for r in results), strict=True)]
        row["first_update_s"] = round(wall[0], 3)
        row["step_s"] = round(statistics.fmean(wall[WARMUP_UPDATES:]), 4)
        row["cpu_s_per_update"] = round(statistics.fmean(cpu[WARMUP_UPDATES:]), 4)
        return row
    errors = [json.loads(path.read_text()) for path in folder.glob("error.*.json")]
    errors.sort(key=lambda e: (any(text in e["message"] for text in PEER_LOST), e["time"]))
    if answer["timed_out"] or not errors:
        return {**row, "status": "error", "message": "timed out" if answer["timed_out"] else "a rank died"}
    text = " ".join(f"{errors[0]['type']}: {errors[0]['message']}".split())
    memory = errors[0]["type"] == "MemoryError" or any(message in text for message in MEMORY_MESSAGES)
    memory |= PRIMITIVE_MESSAGE in text and peak > 0.95 * limit_gib
    return {**row, "status": "oom" if memory else "conflict", "message": text[:300]}


def differences(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]
