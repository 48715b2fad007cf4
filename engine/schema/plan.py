"""spec.json: everything the node agent needs to run one trial."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from engine.schema.base import Record


class ProbePlan(Record):
    """What the probe is told; the measured window is not part of it."""

    nonce: str
    perturb_ulp_seed: int | None = None
    signature: bool = True
    stop: bool = True


class LaunchPlan(Record):
    """One run of the training job. Paths are absolute; times are seconds."""

    version: Literal[1] = 1
    trial_id: str
    token: str
    trial_dir: str
    workdir: str
    output_dir: str
    probe_dir: str
    python: str
    launcher: Literal["torchrun", "srun", "command"]
    command: list[str]
    setup: list[str]
    env: dict[str, str]
    unset: list[str]
    nodes: int
    ranks_per_node: int
    cpus_per_rank: int
    device: Literal["cpu", "cuda"]
    memory_limit_bytes: int | None
    total_updates: int
    measured_updates: int
    probe: ProbePlan
    start_timeout_s: float
    update_timeout_s: float
    total_timeout_s: float
    srun_args: list[str] = Field(default_factory=list)
