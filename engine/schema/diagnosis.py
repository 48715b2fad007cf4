"""What the diagnosis stage learnt about the unchanged job."""

from __future__ import annotations

from engine.schema.base import Record
from engine.schema.trial import Phases


class NoiseEstimate(Record):
    """Standard deviations of log step time.

    within: between updates of one run; between: between runs (dof degrees of freedom);
    smallest_effect: the smallest relative speed-up that the planned verification can tell (power 0.8).
    """

    within: float
    between: float
    dof: int
    runs: int
    smallest_effect: float


class Diagnosis(Record):
    """Baseline facts; None = not measurable here, never zero.

    Bands are the widest relative spread between runs of the unchanged job, perturbed ones among them: of the
    loss and of the gradient norm of one update, and of a parameter's norm after the last update.
    device_peak_flops is the dense bf16 peak of one device.
    """

    step_time_s: float
    tokens_per_s: float | None
    mfu: float | None
    mfu_reason: str | None
    flops_per_update: float | None
    peak_memory_gib: float | None
    memory_limit_gib: float | None
    noise: NoiseEstimate
    phases: Phases
    unexplained_s: float | None
    bottleneck: str
    bottleneck_reason: str
    baseline_trials: tuple[str, ...]
    loss_band: float
    grad_norm_band: float | None = None
    end_state_band: float | None = None
    device_peak_flops: float | None = None
