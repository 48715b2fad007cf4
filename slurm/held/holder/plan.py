"""holder.json: what the engine tells the holder before there is one."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path

ORDERS = "orders.jsonl"
"""Written by the engine: run, cancel, leave."""
EVENTS = "events.jsonl"
"""Written by the holder: allocated, started, cut, ended, withdrawn, declined, idle, leaving."""
HEARTBEAT = "heartbeat"
HOLDER = "holder.json"
TRIAL_FOLDER = "submitit"
"""Folder inside a trial folder, the same with every executor: submission.json, agent.log, srun.log."""


class PlanError(Exception):
    """holder.json cannot be used."""


@dataclass(frozen=True)
class HolderPlan:
    """How trials are started and for how long the allocation is kept; seconds.

    Args:
        version: 1.
        name: The job's name.
        nodes: Nodes of the allocation, all used by every trial.
        srun: Words of the srun call, its program first; the step's program is to follow.
        python: Words of an isolated interpreter that finds this package.
        idle_s: How long to wait for an order before giving the allocation back.
        limit_s: The allocation's time limit as it was asked for.
    """

    version: int
    name: str
    nodes: int
    srun: list[str]
    python: list[str]
    idle_s: float
    limit_s: float

    def agent(self, spec_path: str) -> list[str]:
        """The step that runs a trial."""
        return [*self.srun, *self.python, "-m", "slurm.agent", spec_path]

    def device_check(self, trial_dir: str) -> list[str]:
        """The step that looks for leftovers of a trial on every node."""
        return [*self.srun, *self.python, "-m", "slurm.held.holder.devices", trial_dir]


def load_plan(folder: Path) -> HolderPlan:
    """Read holder.json of an allocation's folder.

    Raises:
        PlanError: not readable, or of another version.
    """
    path = folder / HOLDER
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        plan = HolderPlan(**{field.name: raw[field.name] for field in fields(HolderPlan)})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise PlanError(f"{path}: {type(error).__name__}: {error}") from error
    if plan.version != 1:
        raise PlanError(f"{path}: version: {plan.version!r} is not supported; rule: 1")
    return plan
