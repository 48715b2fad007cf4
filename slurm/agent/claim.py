"""A trial folder is run once, whoever asks again."""

from __future__ import annotations

import os
import socket
import time
from typing import Any

from slurm.agent.durable import claim_json
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan
from slurm.agent.procfs import boot_id, read_stat


class AlreadyRunError(Exception):
    """Another agent has started this trial: a second run would not be a clean measurement."""


def claim(plan: LaunchPlan, node: NodeIdentity, control: dict[str, Any] | None = None) -> None:
    """Write job.json, on the other nodes node-<k>.json.

    Args:
        plan: The trial.
        node: This node.
        control: Where the head listens, for nodes that do not find it otherwise.

    Raises:
        AlreadyRunError: it exists.
        OSError: the folder cannot be written.
    """
    stat = read_stat(os.getpid())
    record = {
        "version": 1,
        "pid": os.getpid(),
        "start_ticks": stat.start_ticks if stat else None,
        "boot_id": boot_id(),
        "host": socket.gethostname(),
        "token": plan.token,
        "started_at": time.time(),
        "node": node.name,
        "slurm": node.slurm(),
    }
    if node.rank:
        record["node_rank"] = node.rank
    if control is not None:
        record["control"] = control
    path = plan.folder / (f"node-{node.rank}.json" if node.rank else "job.json")
    if not claim_json(path, record):
        raise AlreadyRunError(f"{path} exists: this trial was started before")
