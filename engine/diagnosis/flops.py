"""Floating-point operations of one update, and the share of the device's peak that they reach.

Source: Chowdhery et al. (2022), "PaLM", appendix B: 6 N + 12 L H Q T operations a token, without a discount
for causal masks; recomputed forward passes are not counted, so recomputation lowers the utilisation.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from engine.diagnosis.peaks import BF16_PEAK_FLOPS
from engine.schema.evidence import ParameterRecord, RunEvidence
from engine.schema.task import ModelSection


@dataclass(frozen=True)
class ParameterCount:
    """Elements that every token passes through: trained ones cost 6 operations a token, frozen ones 4."""

    trainable: int
    frozen: int


def count_parameters(evidence: RunEvidence) -> ParameterCount | None:
    """Elements of the model as the probe saw them, over all ranks; tied parameters count once.

    Returns:
        None where no rank could read its model.
    """
    seen: dict[str, ParameterRecord] = {}
    for rank in evidence.ranks:
        if rank.start_signature is not None:
            for parameter in rank.start_signature.parameters:
                if parameter.tied_to is None:
                    seen.setdefault(parameter.name, parameter)
    if not seen:
        return None
    trainable = _numel(p for p in seen.values() if p.trainable is not False)
    return ParameterCount(trainable=trainable, frozen=_numel(seen.values()) - trainable)


def flops_per_update(
    tokens: int | None, model: ModelSection, measured: ParameterCount | None
) -> tuple[float | None, str | None]:
    """Operations of forward and backward of one update, all ranks together.

    Args:
        tokens: Tokens of one update, all ranks together.
        model: Sizes that the task file gives; they win over what was measured.
        measured: What the probe counted.

    Returns:
        (operations, None), or (None, why there is no number).
    """
    if tokens is None:
        return None, "the tokens of an update were not visible"
    sparse = model.experts is not None and model.experts > 1 and model.active_parameters is None
    if sparse:
        return None, "a mixture of experts needs [model] active_parameters"
    declared = model.active_parameters or model.parameters
    if declared is not None:
        per_token = 6.0 * declared
    elif measured is not None:
        per_token = 6.0 * measured.trainable + 4.0 * measured.frozen
    else:
        return None, "the number of parameters is neither in [model] nor was it visible"
    if model.layers and model.hidden and model.sequence:
        per_token += 12.0 * model.layers * model.hidden * model.sequence
    return per_token * tokens, None


def model_flops_utilisation(
    flops: float | None, why_no_flops: str | None, step_time_s: float, device_name: str | None, devices: int
) -> tuple[float | None, str | None]:
    """Share of the dense bf16 peak that the model's own operations reach.

    Returns:
        (share, None), or (None, why there is none). Never a guess for a device that is not in the table.
    """
    if flops is None:
        return None, why_no_flops
    if device_name is None:
        return None, "the device has no name that the probe could read (CPU tasks have no peak here)"
    peak = BF16_PEAK_FLOPS.get(device_name)
    if peak is None:
        return None, f"no peak is known for a device of the exact name {device_name!r}"
    return flops / (step_time_s * peak * devices), None


def _numel(parameters: Iterable[ParameterRecord]) -> int:
    return sum(parameter.numel for parameter in parameters)
