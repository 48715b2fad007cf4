"""From the runs of the unchanged job to one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from engine.diagnosis.bands import end_state_band, grad_norm_band, loss_band
from engine.diagnosis.bottleneck import classify_bottleneck
from engine.diagnosis.flops import count_parameters, flops_per_update, model_flops_utilisation
from engine.diagnosis.peaks import BF16_PEAK_FLOPS
from engine.diagnosis.phases import typical_phases, unexplained
from engine.diagnosis.step_noise import estimate_noise
from engine.errors import BaselineError
from engine.schema.diagnosis import Diagnosis
from engine.schema.evidence import RunEvidence
from engine.schema.task import TaskFile
from engine.schema.trial import Measurement

FEWEST_RUNS = 2


def diagnose(
    *,
    baselines: Mapping[str, RunEvidence],
    measurements: Sequence[Measurement | None],
    perturbed: Sequence[RunEvidence],
    settings: TaskFile,
    pairs: int,
) -> Diagnosis:
    """Describe the unchanged job.

    Args:
        baselines: Evidence of each run by trial id; three runs or more give a usable noise estimate.
        measurements: Their measurements; None where a run could not be measured.
        perturbed: Runs of the unchanged job with numerically equivalent perturbations; they widen the
            bands.
        settings: The task file.
        pairs: Pairs that the verification plans.

    Raises:
        BaselineError: fewer than two runs were measured.
    """
    measured = [measurement for measurement in measurements if measurement is not None]
    if len(measured) < FEWEST_RUNS:
        raise BaselineError(
            f"only {len(measured)} of {len(measurements)} runs of the unchanged job could be measured",
            rule=f"at least {FEWEST_RUNS}: without them the noise is unknown and no gain can be told",
            hint="look at launcher.log in the study's b… trial folders; `infrarsi check` shows the command",
        )
    step_time_s = median(measurement.step_time_s for measurement in measured)
    phases = typical_phases(measured)
    rest = unexplained(step_time_s, phases)
    peak, limit = _largest(measured), settings.allocation.memory_limit_gib
    evidence = list(baselines.values())
    tokens = next((m.tokens_per_update for m in measured if m.tokens_per_update is not None), None)
    counted = next((count for count in map(count_parameters, evidence) if count is not None), None)
    flops, why_no_flops = flops_per_update(tokens, settings.model, counted)
    world_size = settings.allocation.world_size
    device_name = _device_name(evidence)
    mfu, why_no_mfu = model_flops_utilisation(flops, why_no_flops, step_time_s, device_name, world_size)
    alike = [*evidence, *perturbed]
    bottleneck = classify_bottleneck(step_time_s, phases, rest, peak, limit)
    return Diagnosis(
        step_time_s=step_time_s,
        tokens_per_s=None if tokens is None else tokens / step_time_s,
        mfu=mfu,
        mfu_reason=why_no_mfu,
        flops_per_update=flops,
        peak_memory_gib=peak,
        memory_limit_gib=limit,
        noise=estimate_noise(measured, pairs),
        phases=phases,
        unexplained_s=rest,
        bottleneck=bottleneck.kind,
        bottleneck_reason=bottleneck.reason,
        baseline_trials=tuple(baselines),
        loss_band=loss_band(alike),
        grad_norm_band=grad_norm_band(alike),
        end_state_band=end_state_band(alike),
        device_peak_flops=None if device_name is None else BF16_PEAK_FLOPS.get(device_name),
    )


def _largest(measurements: Sequence[Measurement]) -> float | None:
    peaks = [m.peak_memory_gib for m in measurements if m.peak_memory_gib is not None]
    return max(peaks, default=None)


def _device_name(evidence: Sequence[RunEvidence]) -> str | None:
    names = [rank.torch.device_name for run in evidence for rank in run.ranks if rank.torch is not None]
    return next((name for name in names if name is not None), None)
