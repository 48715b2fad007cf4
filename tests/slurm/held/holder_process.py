"""A holder as a process of its own, outside of Slurm, with a program that stands in for srun."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.durable import write_json
from engine.schema.plan import LaunchPlan
from slurm.held.holder.ledger import Entry, LedgerReader, append
from slurm.held.holder.plan import EVENTS, HOLDER, ORDERS, TRIAL_FOLDER, HolderPlan
from tests.slurm.trial_folder import make_trial, wait_for

FAKE_SRUN = Path(__file__).with_name("fake_srun.py")


class HolderProcess:
    """An allocation's folder and the holder in it."""

    def __init__(self, folder: Path, **plan: Any) -> None:
        self.folder = folder
        folder.mkdir()
        for name in (ORDERS, EVENTS):
            (folder / name).touch()
        values: dict[str, Any] = {
            "version": 1,
            "name": "infrarsi-held-test",
            "nodes": 1,
            "srun": [sys.executable, str(FAKE_SRUN), "--overlap", "--output", "agent.log"],
            "python": [sys.executable, "-P"],
            "idle_s": 60.0,
            "limit_s": 3600.0,
        }
        write_json(folder / HOLDER, dataclasses.asdict(HolderPlan(**{**values, **plan})))
        self.mode_file = folder / "srun_mode"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> None:
        """Start the holder."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        with (self.folder / "holder.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "slurm.held.holder", str(self.folder)],
                env={**own, "FAKE_SRUN_MODE": str(self.mode_file), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def order(self, plan: LaunchPlan, **changes: Any) -> None:
        """Order a trial as the engine does."""
        (Path(plan.trial_dir) / TRIAL_FOLDER).mkdir(exist_ok=True)
        values: dict[str, Any] = {
            "trial_id": plan.trial_id,
            "token": plan.token,
            "trial_dir": plan.trial_dir,
            "spec_path": str(Path(plan.trial_dir) / "spec.json"),
            "time_limit_s": plan.total_timeout_s,
        }
        append(self.folder / ORDERS, "run", **{**values, **changes})

    def say(self, kind: str, **values: Any) -> None:
        """Append any order."""
        append(self.folder / ORDERS, kind, **values)

    def events(self) -> list[Entry]:
        """Every event so far."""
        return LedgerReader(self.folder / EVENTS).new()

    def kinds(self) -> list[str]:
        """Kinds of the events so far."""
        return [event["kind"] for event in self.events()]

    def wait_for(self, kind: str, limit_s: float = 20.0, **values: Any) -> Entry:
        """Wait for an event of this kind with these values."""

        def found() -> Entry | None:
            for event in self.events():
                if event["kind"] == kind and all(event.get(key) == value for key, value in values.items()):
                    return event
            return None

        try:
            event: Entry = wait_for(found, f"the holder says {kind} {values}", limit_s)
        except TimeoutError as error:
            said = (self.folder / "holder.log").read_text()
            raise TimeoutError(f"{error}; events: {self.events()}; it said: {said}") from None
        return event

    def wait_for_end(self, limit_s: float = 20.0) -> int:
        """Wait until the holder has left; its exit code."""
        assert self.process is not None
        return self.process.wait(limit_s)

    def stop(self) -> None:
        """End the holder in any case."""
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(30.0)
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def holder(folder: Path, **plan: Any) -> Iterator[HolderProcess]:
    """A holder that is ended with the test; it is not started yet."""
    made = HolderProcess(folder, **plan)
    try:
        yield made
    finally:
        made.stop()


def trial(folder: Path, mode: str, token: str, **overrides: Any) -> LaunchPlan:
    """A trial of its own token."""
    return make_trial(folder, mode, token=token, **overrides)
