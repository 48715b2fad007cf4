"""How noisy step times are, within a run and between runs; everything in log step time.

Source: Huber (1981), "Robust Statistics" (median absolute deviation); Kuensch (1989), Ann. Statist. 17
(moving-block bootstrap for dependent data).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import norm

from engine.models.arrays import positive_vector
from engine.models.student_t import student_quantile

_MAD_TO_SD = 1.0 / float(norm.ppf(0.75))
# Asymptotic efficiency of the median absolute deviation at the normal: n values say as much as 0.37 n would.
_MAD_EFFICIENCY = 0.3675


@dataclass(frozen=True)
class NoiseEstimate:
    """A standard deviation of log step time.

    Attributes:
        sd: >= 0; 0.01 is about 1 %.
        dof: Degrees of freedom behind it, > 0.
    """

    sd: float
    dof: float


def within_run(step_times: ArrayLike) -> NoiseEstimate | None:
    """Robust spread of single steps; stragglers and stalls do not move it.

    Args:
        step_times: Seconds, shape (n,), > 0, warm-up taken off.

    Returns:
        Scaled median absolute deviation of the log step time, or None for fewer than three steps.
    """
    logs = np.log(positive_vector("step times", step_times))
    if logs.shape[0] < 3:
        return None
    deviation = float(np.median(np.abs(logs - np.median(logs))))
    return NoiseEstimate(_MAD_TO_SD * deviation, _MAD_EFFICIENCY * (logs.shape[0] - 1))


def between_runs(runs: Sequence[ArrayLike]) -> NoiseEstimate | None:
    """Spread of the log mean step time over independent runs of one configuration.

    Args:
        runs: One array of step times (seconds, shape (n_r,), n_r >= 1) per run.

    Returns:
        Sample standard deviation with len(runs) - 1 degrees of freedom, or None for fewer than two runs.
    """
    if len(runs) < 2:
        return None
    means = np.asarray([np.log(np.mean(positive_vector("step times", run))) for run in runs])
    return NoiseEstimate(float(np.std(means, ddof=1)), float(len(runs) - 1))


def pool(estimates: Sequence[NoiseEstimate]) -> NoiseEstimate | None:
    """Estimates of one quantity, combined by degrees of freedom; None when there is none."""
    dof = sum(estimate.dof for estimate in estimates)
    if dof <= 0.0:
        return None
    squares = sum(estimate.dof * estimate.sd**2 for estimate in estimates)
    return NoiseEstimate(math.sqrt(squares / dof), dof)


def smallest_tellable(
    noise: NoiseEstimate, pairs: int, confidence: float = 0.95, power: float = 0.8
) -> float:
    """Smallest log speed-up that `pairs` paired runs find with the given power, from diagnosis noise.

    Args:
        noise: Between-run noise; its degrees of freedom widen the result.
        pairs: Number of baseline-candidate pairs, >= 1.
        confidence: Two-sided level of the test.
        power: Chance to find an effect of that size.

    Returns:
        (t_confidence + t_power) sd sqrt(2 / pairs), log units.
    """
    if pairs < 1:
        raise ValueError(f"pairs = {pairs}: must be at least 1")
    quantiles = student_quantile(noise.dof, 0.5 + 0.5 * confidence) + student_quantile(noise.dof, power)
    return quantiles * noise.sd * math.sqrt(2.0 / pairs)


def search_margin(noise: NoiseEstimate) -> float:
    """Log speed-up above which a search trial counts as an improvement: max(1 %, 2 sqrt(2) sd)."""
    return max(math.log(1.01), 2.0 * math.sqrt(2.0) * noise.sd)
