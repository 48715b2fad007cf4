"""What the checks may assume and allow."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.schema.base import Record

Precision = Literal["fp32", "bf16", "fp16", "fp8"]
Band = Annotated[float, Field(ge=0)]


class InvariantContext(Record):
    """Constraints of the task, and bands learnt from reruns of the baseline.

    Attributes:
        loss_tolerance: Relative, per update, both ways.
        loss_band: Spread of the baseline's loss per update over reruns and one-ulp perturbations, relative.
        grad_norm_band: The same spread of the gradient norm, relative; None = not learnt.
        end_state_band: The same spread of a parameter's norm after the last update, relative.
        precision_floor: Lowest number format that compute may use.
        allow: Locked mechanisms that the task permits after all.
        data_order: Whether each update or only the whole run must hold the same samples.
        scope_findings: Violations found before and after the run; None = never checked.
        nodes: Nodes of the task's allocation; None = those of the baseline.
        world_size: Ranks of the task's allocation; None = those of the baseline.
        device_peak_flops: Per rank, FLOP/s at the lowest precision in use; None = unknown.
        flops_per_update: Of the unchanged job, all ranks together; None = unknown.
        is_short_run: The run has too few updates for a statement about steadiness.
    """

    loss_tolerance: Annotated[float, Field(gt=0)] = 0.005
    loss_band: Band = 0.0
    grad_norm_band: Band | None = None
    end_state_band: Band | None = None
    precision_floor: Precision = "bf16"
    allow: tuple[str, ...] = ()
    data_order: Literal["exact", "same_multiset"] = "exact"
    scope_findings: tuple[str, ...] | None = None
    nodes: int | None = None
    world_size: int | None = None
    device_peak_flops: Annotated[float, Field(gt=0)] | None = None
    flops_per_update: Annotated[float, Field(gt=0)] | None = None
    is_short_run: bool = False
