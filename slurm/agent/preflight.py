"""What can be known to go wrong before anything is started: without torch, within seconds."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan

_SMI_TIMEOUT_S = 30.0
_DEV = Path("/dev")
_NONE_VISIBLE = frozenset({"", "-1", "NoDevFiles", "none", "void"})


@dataclass
class Examination:
    """What one node found: `errors` prevent the launch, `notes` are only told."""

    cpus: int | None = None
    devices: int | None = None
    errors: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def facts(self) -> dict[str, Any]:
        """What the head is told."""
        return {"cpus": self.cpus, "devices": self.devices, "errors": self.errors, "notes": self.notes}


def examine(plan: LaunchPlan, node: NodeIdentity, environ: Mapping[str, str]) -> Examination:
    """Compare the plan with what this node is: layout, devices, CPUs, trial folder."""
    found = Examination(cpus=visible_cpus())
    _check_layout(plan, node, found)
    _check_folder(plan, found)
    if plan.device == "cuda":
        found.devices = visible_devices(environ)
        _check_devices(plan, node, environ, found)
    wanted = plan.ranks_per_node * plan.cpus_per_rank
    if found.cpus is not None and found.cpus < wanted:
        # Only a note: where CPUs are not bound to jobs, the mask says little.
        found.notes.append(
            f"{found.cpus} CPUs may be used, the plan counts on {wanted} "
            f"({plan.ranks_per_node} ranks x {plan.cpus_per_rank}): ranks share cores"
        )
    return found


def visible_cpus() -> int | None:
    """CPUs on which this process may run."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:
        return None


def visible_devices(environ: Mapping[str, str]) -> int | None:
    """GPUs that a training process would see here; None when nothing on this node can tell."""
    masked: int | None = None
    entries = [entry.strip() for entry in environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if "CUDA_VISIBLE_DEVICES" in environ:
        masked = 0 if entries[0] in _NONE_VISIBLE else len(entries)
        if any(entry.startswith("MIG") for entry in entries):
            return masked
    present = _listed_devices(environ)
    if masked is None or present is None:
        return present if masked is None else masked
    return min(masked, present)


def _listed_devices(environ: Mapping[str, str]) -> int | None:
    """What nvidia-smi lists; without it, 0 when no driver's device file is there, else unknown."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_SMI_TIMEOUT_S,
        )
    except FileNotFoundError:
        drivers = [*_DEV.glob("nvidia[0-9]*"), *_DEV.glob("kfd"), *_DEV.glob("dxg")]
        return None if drivers or "CUDA_VISIBLE_DEVICES" in environ else 0
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode != 0:
        return 0 if b"No devices" in done.stdout + done.stderr else None
    return sum(line.startswith(b"GPU ") for line in done.stdout.splitlines())


def _check_layout(plan: LaunchPlan, node: NodeIdentity, found: Examination) -> None:
    if not node.is_scheduled and node.count == 1:
        return  # the launcher says what is missing
    if plan.nodes != node.count:
        found.errors.append(
            f"nodes: the plan has {plan.nodes}, the agent was started on {node.count}; "
            f"rule: a world of {plan.world_size} ranks on {plan.nodes} nodes; hint: one agent on each node"
        )
    if node.tasks is not None and node.tasks != node.count:
        found.errors.append(
            f"tasks: the step has {node.tasks} on {node.count} nodes; rule: one agent on each node; "
            "hint: srun --ntasks-per-node=1"
        )


def _check_folder(plan: LaunchPlan, found: Examination) -> None:
    probe = plan.folder / f".write-test-{os.uname().nodename}-{os.getpid()}"
    try:
        probe.write_bytes(b"x" * 64)
    except OSError as error:
        found.errors.append(f"{plan.trial_dir}: cannot be written from this node: {error.strerror or error}")
    finally:
        with contextlib.suppress(OSError):
            probe.unlink()


def _check_devices(
    plan: LaunchPlan, node: NodeIdentity, environ: Mapping[str, str], found: Examination
) -> None:
    wanted = plan.ranks_per_node
    if found.devices is None:
        found.notes.append("the number of GPUs could not be found out before the launch")
    elif found.devices == 0:
        hint = "request them in [allocation] gpus_per_node" if node.is_scheduled else "is this a GPU machine?"
        mask = environ.get("CUDA_VISIBLE_DEVICES")
        shown = "unset" if mask is None else repr(mask)
        found.errors.append(
            f"no GPU was requested or allocated on this node (CUDA_VISIBLE_DEVICES is {shown}); hint: {hint}"
        )
    elif found.devices < wanted:
        found.errors.append(f"{found.devices} GPUs are visible, {wanted} ranks need one each on this node")
