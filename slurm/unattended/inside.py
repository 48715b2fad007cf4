"""Engine and trials in one allocation: to submit a held allocation means to start its holder in this job.

For sites that take no jobs from compute nodes. The executor stays as it is: it talks to Slurm through
InsideCommands, which starts the holder that sbatch would have started, and gives the job the holder's name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path

from engine.durable import write_json
from engine.journal.lease import start_ticks
from slurm.held.holder.ledger import append
from slurm.held.holder.plan import EVENTS
from slurm.held.holding import ALLOCATION, HOLDER_LOG, Holding
from slurm.held.progress import TAKEN_AWAY
from slurm.scheduler.command import CommandResult, SlurmCommands
from slurm.unattended.folder import EngineFolder

VARIABLE = "INFRARSI_INSIDE"
"""JSON object in the engine's environment: engine_dir, driver (process id), since (unix time)."""

IDLE_S = 24 * 3600.0
"""A holder does not leave for want of orders: the job lasts as long as its engine in any case."""

_HOLDER = "holder.json"
_OUT_OF_TIME = ("too_little_time", "time_limit")
_AFTER = 'while kill -0 "$1" 2>/dev/null; do sleep 0.5; done; exec bash "$2"'


def inside_variables(folder: EngineFolder) -> dict[str, str]:
    """What the driver adds to the engine's environment."""
    value = {"engine_dir": str(folder.root), "driver": os.getpid(), "since": time.time()}
    return {VARIABLE: json.dumps(value)}


def inside_commands(log: Path, environ: Mapping[str, str] | None = None) -> InsideCommands | None:
    """Slurm's programs for an engine that runs inside its allocation; None for any other engine."""
    environ = os.environ if environ is None else environ
    text, job_id = environ.get(VARIABLE), environ.get("SLURM_JOB_ID")
    if not text or not job_id:
        return None
    value = json.loads(text)
    return InsideCommands(
        log,
        EngineFolder(Path(value["engine_dir"])),
        job_id=job_id,
        job_name=environ.get("SLURM_JOB_NAME", ""),
        driver=int(value["driver"]),
        since=float(value["since"]),
    )


class InsideCommands(SlurmCommands):
    """Slurm's programs, of which sbatch and scancel concern the holder in this job.

    Args:
        log: As of SlurmCommands.
        folder: The engine's folder; it remembers the holder for a later engine.
        job_id: The job that we are in.
        job_name: Its name, which the holder's name stands for towards the executor.
        driver: Process id of the driver, which asks Slurm for a fresh allocation when it gets SIGUSR1.
        since: When this turn of the job began, unix seconds.
    """

    def __init__(
        self, log: Path | None, folder: EngineFolder, *, job_id: str, job_name: str, driver: int, since: float
    ) -> None:
        super().__init__(log)
        self._folder = folder
        self._job_id = job_id
        self._job_name = job_name
        self._driver = driver
        self._since = since

    def run(self, *argv: str, timeout_s: float | None = None) -> CommandResult:
        """Run a program, or do in this job what it would have done elsewhere."""
        if argv[0] == "sbatch" and "--test-only" not in argv:
            return self._start(argv)
        if argv[0] == "scancel" and argv[-1] == self._job_id:
            return self._end(argv)
        held = self._holder().get("name")
        if not isinstance(held, str) or not self._job_name:
            return super().run(*argv, timeout_s=timeout_s)
        words = [word.replace(held, self._job_name) for word in argv]
        result = super().run(*words, timeout_s=timeout_s)
        return dataclasses.replace(result, stdout=result.stdout.replace(self._job_name, held))

    def _start(self, argv: tuple[str, ...]) -> CommandResult:
        script = Path(argv[-1])
        record = json.loads((script.parent / ALLOCATION).read_bytes())
        before = self._holder()
        if before.get("since") == self._since and _ran_out_of_time(Path(str(before.get("folder")))):
            os.kill(self._driver, signal.SIGUSR1)
            words = "this allocation is used up: the engine goes on in a fresh one"
            return CommandResult(argv, 1, "", words, 0.0)
        # The turn is fresh: what runs in it is one clean measurement, however often the job was requeued.
        environment = {
            name: value for name, value in os.environ.items() if name not in (VARIABLE, "SLURM_RESTART_COUNT")
        }
        with (script.parent / HOLDER_LOG).open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", _AFTER, "holder", str(before.get("pid") or 0), str(script)]
                if _runs(before)
                else ["bash", str(script)],
                env=environment,
                cwd=script.parent,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
        value = {
            "name": record["name"],
            "folder": str(script.parent),
            "pid": process.pid,
            "ticks": start_ticks(process.pid),
            "since": self._since,
        }
        write_json(self._folder.root / _HOLDER, value)
        return CommandResult(argv, 0, f"{self._job_id}\n", "", 0.0)

    def _end(self, argv: tuple[str, ...]) -> CommandResult:
        """End the holder; the job is the engine's own and ends with it."""
        holder = self._holder()
        if _runs(holder):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(int(str(holder["pid"])), signal.SIGTERM)
        return CommandResult(argv, 0, "", "", 0.0)

    def _holder(self) -> dict[str, object]:
        try:
            value = json.loads((self._folder.root / _HOLDER).read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


def close_left_holders(study: Path) -> None:
    """After a requeue no holder of an earlier turn lives: say so where its events are read."""
    for path in sorted((study / "held").glob("*")):
        holding = Holding.load(path) if path.name.isdigit() else None
        if holding is None:
            continue
        leaving = holding.progress.leaving
        if leaving is None or leaving.reason == TAKEN_AWAY:
            append(path / EVENTS, "leaving", reason="restarted", orders=0)


def _ran_out_of_time(folder: Path) -> bool:
    """Whether a holder was given up because what is left of the allocation is too little for a trial."""
    holding = Holding.load(folder)
    if holding is None:
        return False
    leaving = holding.progress.leaving
    words = (holding.record.given_up or "", leaving.reason if leaving is not None else "")
    return any(word in _OUT_OF_TIME or " are left" in word for word in words)


def _runs(holder: Mapping[str, object]) -> bool:
    pid = holder.get("pid")
    return isinstance(pid, int) and holder.get("ticks") is not None and start_ticks(pid) == holder["ticks"]
