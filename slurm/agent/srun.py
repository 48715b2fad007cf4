"""The launcher "srun": one step over all nodes whose tasks are the ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from slurm.agent import shim
from slurm.agent.launch import LaunchError, Meeting, filled, program
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan

_SECONDS_TO_FOLLOW = 60
"""How long srun lets the other tasks run when one has ended well; sites set it far too low."""


def srun_command(plan: LaunchPlan, node: NodeIdentity, names: Sequence[str]) -> list[str]:
    """The srun command of the head: every option explicit, because the caller's variables are scrubbed.

    Args:
        plan: The trial.
        node: The head's identity; names the job.
        names: Slurm's names of the nodes, in the order of their ranks.

    Raises:
        LaunchError: there is no Slurm job here.
    """
    if node.job_id is None:
        raise LaunchError('launcher: "srun" needs a Slurm job; hint: use "torchrun" or "command"')
    return [
        "srun",
        f"--jobid={node.job_id}",
        "--overlap",
        "--kill-on-bad-exit=1",
        f"--wait={_SECONDS_TO_FOLLOW}",
        f"--nodes={plan.nodes}",
        f"--nodelist={','.join(names)}",
        f"--ntasks={plan.world_size}",
        f"--ntasks-per-node={plan.ranks_per_node}",
        f"--cpus-per-task={plan.cpus_per_rank}",
        "--distribution=block",
        "--export=ALL",
        *plan.srun_args,
        plan.python,
        "-I",
        str(Path(shim.__file__).resolve()),
    ]


def shim_orders(plan: LaunchPlan, meeting: Meeting, roster: Sequence[Mapping[str, Any]]) -> str:
    """What the tasks are told, as JSON for the variable `INFRARSI_SHIM`.

    Args:
        plan: The trial.
        meeting: Where the ranks meet.
        roster: `name` and `socket` of each node, in the order of their ranks.
    """
    known = {"master_addr": meeting.address, "master_port": str(meeting.port)}
    orders = {
        "nodes": [{"name": entry["name"], "socket": entry["socket"]} for entry in roster],
        "ranks_per_node": plan.ranks_per_node,
        "world_size": plan.world_size,
        **known,
        "memory_limit_bytes": plan.memory_limit_bytes if plan.device == "cpu" else None,
        "setup": plan.setup,
        "command": filled(program(plan), known),
    }
    return json.dumps(orders)
