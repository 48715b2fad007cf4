"""What a held allocation asks of Slurm: its batch script and what the holder is told."""

from __future__ import annotations

import shlex
from pathlib import Path

from engine.schema.task import AllocationSection, SlurmSection
from slurm.held.holder.plan import HolderPlan
from slurm.held.holding import HOLDER_LOG, isolated_python
from slurm.scheduler.allocation import (
    AllocationRequest,
    end_signal,
    gpus_wanted,
    sbatch_options,
    script_text,
    srun_words,
)

STEP_LOG = "agent.log"
_STEP_GPU_OPTIONS = ("gres", "gpus-per-node")


def allocation_request(
    settings: SlurmSection, allocation: AllocationSection, name: str, folder: Path, exclude: tuple[str, ...]
) -> AllocationRequest:
    """One allocation with all that a trial needs; the warning before its end goes to the holder alone."""
    time_min = settings.time_limit_min
    return AllocationRequest(
        name=name,
        nodes=allocation.nodes,
        gpus_per_node=gpus_wanted(settings, allocation),
        cpus_per_task=allocation.ranks * allocation.cpus_per_rank,
        time_min=time_min,
        exclude=exclude,
        settings=settings,
        output=f"{folder}/{HOLDER_LOG}",
        chdir=str(folder),
        signal=f"B:{end_signal(time_min)}",
        comment="InfraRSI: held between trials, gives itself back when idle",
    )


def step_words(request: AllocationRequest) -> list[str]:
    """The srun call of a trial in this allocation: everything that was allocated, shared with nobody's step.

    It overlaps with the batch step, which holds nothing but would otherwise count as an owner.
    """
    options = sbatch_options(request)
    gpus = [f"--{name}={options[name]}" for name in _STEP_GPU_OPTIONS if name in options]
    program, *words = srun_words(request, STEP_LOG, STEP_LOG)
    return [program, "--overlap", "--mpi=none", *gpus, *words]


def holder_plan(request: AllocationRequest, idle_s: float) -> HolderPlan:
    """What the holder is told."""
    return HolderPlan(
        version=1,
        name=request.name,
        nodes=request.nodes,
        srun=step_words(request),
        python=isolated_python(),
        idle_s=idle_s,
        limit_s=request.time_min * 60.0,
    )


def holder_script(request: AllocationRequest, folder: Path) -> str:
    """The batch script; `exec` makes the holder the process that Slurm's signals reach."""
    command = shlex.join([*isolated_python(), "-m", "slurm.held.holder", str(folder)])
    return script_text(sbatch_options(request), [f"exec {command}"])
