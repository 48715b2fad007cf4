"""A study that a drill breaks: the product's own commands as processes, and the moments to break it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.state import StudyState, TrialState, replay
from engine.schema.study import Entry, TrialProposed
from tests.slurm.trial_folder import read_json, wait_for
from tests.slurm_cluster.cluster import SlurmCluster
from tests.slurm_cluster.projects import copy_project, order, release

ROOT = Path(__file__).parents[2]
FAST = {"pace__step_ms": 20}


@dataclass(frozen=True)
class Answer:
    """How a command ended: its exit code, its JSON object and what it narrated."""

    code: int
    value: dict[str, Any]
    narration: str


class Engine:
    """One command of the product that runs."""

    def __init__(self, arguments: list[str], environment: dict[str, str], files: Path) -> None:
        files.mkdir(parents=True)
        self._files = files
        with (files / "stdout").open("wb") as out, (files / "stderr").open("wb") as narration:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "infrarsi_tui.main", *arguments],
                cwd=files,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=narration,
                start_new_session=True,
            )

    @property
    def narration(self) -> str:
        """What it has said so far."""
        return (self._files / "stderr").read_text(errors="replace")

    def wait(self, limit_s: float = 90.0) -> Answer:
        """Wait for its end."""
        try:
            code = self.process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {limit_s:g} s:\n{self.narration[-3000:]}") from None
        text = (self._files / "stdout").read_text()
        return Answer(code, json.loads(text) if text else {}, self.narration)

    def kill(self) -> None:
        """SIGKILL, and nothing else of what it started: those are separate processes of a cluster."""
        self.process.kill()
        self.process.wait(timeout=10)

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


@dataclass
class DrilledStudy:
    """One study on one cluster.

    Attributes:
        cluster: Where its trials run.
        root: A folder of this drill alone; `study` may be moved elsewhere before the first command.
        task: A name in tests.slurm_cluster.projects.TASKS.
        changes: Changes of the project, as `copy_project` takes them.
    """

    cluster: SlurmCluster
    root: Path
    task: str = "eight"
    changes: dict[str, Any] = field(default_factory=dict)
    engines: list[Engine] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.orders = self.root / "orders"
        self.orders.mkdir(parents=True)
        self.study = self.root / "study"
        self.environment = {**self.cluster.environment(), "PYTHONPATH": str(ROOT)}
        changes = {**FAST, "drill__folder": str(self.orders), **self.changes}
        self.project = copy_project(self.root / "project", self.task, **changes)

    # --- commands -------------------------------------------------------------------------------------------

    def start(self, command: str = "diagnose", *arguments: str) -> Engine:
        """Start a command on the task, with a new study folder."""
        return self.command(
            command, str(self.project), "--executor", "slurm", "--out", str(self.study), *arguments
        )

    def resume(self) -> Engine:
        """Go on with the study by the command that asks for no more than `diagnose` did, else all stages."""
        return self.command("resume", str(self.study))

    def command(self, *arguments: str, json_wanted: bool = True) -> Engine:
        """Start any command of the product."""
        words = [*arguments, "--json"] if json_wanted else list(arguments)
        engine = Engine(words, self.environment, self.root / f"engine-{len(self.engines)}")
        self.engines.append(engine)
        return engine

    def replace_program(self, name: str, body: str) -> None:
        """Put a shell script before a program of Slurm on the PATH of commands started from now on.

        `$real` is the program, `$here` a folder of the script's own.
        """
        folder = self.root / f"before-{name}"
        folder.mkdir()
        search = self.environment["PATH"]
        real = next(path for part in search.split(os.pathsep) if (path := Path(part) / name).exists())
        script = folder / name
        script.write_text(f"#!/bin/sh\nreal={real}\nhere={folder}\n{body}\n")
        script.chmod(0o755)
        self.environment["PATH"] = f"{folder}{os.pathsep}{search}"

    def end(self) -> None:
        """End what still runs, when the drill is over."""
        for engine in self.engines:
            if engine.process.poll() is None:
                engine.kill()

    # --- what the study says --------------------------------------------------------------------------------

    @property
    def folder(self) -> StudyFolder:
        """The study's folder."""
        return StudyFolder(self.study)

    def entries(self) -> list[Entry]:
        """The journal so far."""
        return list(read_entries(self.folder.journal))

    def state(self) -> StudyState:
        """What the journal says now."""
        return replay(self.entries())

    def trial(self, trial_id: str) -> TrialState:
        """One trial as of now."""
        return self.state().trials[trial_id]

    def token(self, trial_id: str) -> str:
        """The token of a trial that was prepared."""
        return str(read_json(self.folder.trial(trial_id) / "spec.json")["token"])

    def job_name(self, trial_id: str) -> str:
        """The name of a trial's own job."""
        return f"infrarsi-{self.token(trial_id)[:12]}"

    def job(self, trial_id: str) -> str:
        """The id of a trial's own job, once it is in the queue."""

        def found() -> str | None:
            name = self.job_name(trial_id)
            return next((job["id"] for job in self.cluster.jobs() if job["name"] == name), None)

        return str(wait_for(found, f"the job of {trial_id} is queued"))

    def calls(self, program: str) -> list[dict[str, Any]]:
        """The calls of a program of Slurm, from scheduler.jsonl."""
        lines = self.folder.scheduler_log.read_text().splitlines()
        return [call for call in map(json.loads, lines) if call["argv"][0] == program]

    # --- moments --------------------------------------------------------------------------------------------

    def order(self, mode: str, *, rank: int = 1, update: int = 3) -> None:
        """Tell a rank of the next run what to do wrong; see tests/slurm_cluster/payload/drills.py."""
        order(self.orders, mode, rank=rank, update=update)

    def hold_next(self, *, rank: int = 1, update: int = 3) -> None:
        """Let the next run wait before an update, until `release`."""
        (self.orders / "release").unlink(missing_ok=True)
        for left in self.orders.glob("waiting-*"):
            left.unlink()
        self.order("wait", rank=rank, update=update)

    def until_held(self, limit_s: float = 60.0) -> str:
        """Wait until a run waits; the id of its trial."""
        wait_for(lambda: list(self.orders.glob("waiting-*")), "a rank waits", limit_s)
        return next(trial.trial_id for trial in self.state().open_trials())

    def release(self) -> None:
        """Let the run go on."""
        release(self.orders)

    def until_proposed(self, kind: str, limit_s: float = 90.0) -> str:
        """Wait until a trial of a kind is proposed, before it runs; its id."""

        def proposed() -> str | None:
            found = [each.data for each in self._entries_so_far() if isinstance(each.data, TrialProposed)]
            return next((each.trial_id for each in found if each.kind == kind), None)

        return str(wait_for(proposed, f"a {kind} trial is proposed", limit_s))

    def until_submitted(self, trial_id: str, limit_s: float = 60.0) -> None:
        """Wait until the journal holds the job of a trial."""
        wait_for(lambda: self.trial(trial_id).handle is not None, f"{trial_id} is submitted", limit_s)

    def _entries_so_far(self) -> list[Entry]:
        return self.entries() if self.folder.journal.is_dir() else []


def stays_so(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether a condition holds at every look for so long."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not condition():
            return False
        time.sleep(0.1)
    return True
