"""Trial folders for the tests: a spec.json that runs one of the payloads."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.durable import write_json
from engine.schema.job import JobRequest
from engine.schema.plan import LaunchPlan, ProbePlan
from slurm.agent.procfs import processes_of_trial

PAYLOADS = Path(__file__).with_name("payloads")
TOKEN = "0123abcd"


def make_trial(folder: Path, mode: str, *, ranks: int = 1, **overrides: Any) -> LaunchPlan:
    """Write the folder and spec.json of a trial that runs the payload's `mode`."""
    for name in ("probe", "work", "output"):
        (folder / name).mkdir(parents=True)
    script = PAYLOADS / ("trainer.py" if ranks == 1 else "spawner.py")
    values: dict[str, Any] = {
        "trial_id": folder.name,
        "token": TOKEN,
        "trial_dir": str(folder),
        "workdir": str(folder / "work"),
        "output_dir": str(folder / "output"),
        "probe_dir": str(folder / "probe"),
        "python": sys.executable,
        "launcher": "command",
        "command": [str(script), mode, str(folder / "output")],
        "setup": [],
        "env": {},
        "unset": [],
        "nodes": 1,
        "ranks_per_node": ranks,
        "cpus_per_rank": 1,
        "device": "cpu",
        "memory_limit_bytes": None,
        "total_updates": 5,
        "measured_updates": 3,
        "probe": ProbePlan(nonce="00ff"),
        "start_timeout_s": 30.0,
        "update_timeout_s": 30.0,
        "total_timeout_s": 60.0,
    }
    plan = LaunchPlan(**{**values, **overrides})
    write_json(folder / "spec.json", plan.model_dump(mode="json"))
    return plan


def make_wide_trial(folder: Path, mode: str, *, nodes: int = 2, **overrides: Any) -> LaunchPlan:
    """Write a trial of two ranks on each of several nodes."""
    command = [str(PAYLOADS / "spawner.py"), mode, str(folder / "output"), "{node_rank}", str(nodes)]
    return make_trial(folder, mode, ranks=2, **{"nodes": nodes, "command": command, **overrides})


def request_of(plan: LaunchPlan) -> JobRequest:
    """The request that submits a trial."""
    return JobRequest(
        trial_id=plan.trial_id,
        trial_dir=plan.trial_dir,
        spec_path=str(Path(plan.trial_dir) / "spec.json"),
        token=plan.token,
        nodes=plan.nodes,
        ranks_per_node=plan.ranks_per_node,
        cpus_per_rank=plan.cpus_per_rank,
        time_limit_s=plan.total_timeout_s,
    )


def wait_for(condition: Callable[[], Any], what: str, limit_s: float = 20.0) -> Any:
    """Poll until the condition's value is true and return it; fail loudly at the deadline."""
    deadline = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {limit_s} s: {what}")
        time.sleep(0.02)


def read_json(path: Path) -> Any:
    """The content of a JSON file."""
    return json.loads(path.read_text())


def records_of(folder: Path, rank: int = 0) -> list[dict[str, Any]]:
    """The lines of updates-<rank>.jsonl."""
    return [json.loads(line) for line in (folder / f"updates-{rank}.jsonl").read_text().splitlines()]


def no_process_left(plan: LaunchPlan) -> bool:
    """Whether nothing on this machine belongs to the trial any more."""
    return not processes_of_trial(plan.trial_dir)
