"""Honest statistics of a final claim: interleaved pairs of baseline and finalist, re-run for it alone.

The trial that won a search is lucky by construction (the best of 30 equal arms looks 2 standard deviations
better than it is), so its search measurement never enters here.

Source: Student (1908), Biometrika 6; Holm (1979), Scand. J. Statist. 6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtri, stdtr

from engine.models.arrays import FloatArray, finite_vector
from engine.models.noise import NoiseEstimate
from engine.models.student_t import student_quantile

VERIFICATION_LEVEL = 0.99
SMALLEST_CLAIM = math.log(1.01)
MOST_FINALISTS = 3


@dataclass(frozen=True)
class PairedEstimate:
    """Mean of k paired log ratios, log(baseline step time / finalist step time).

    Attributes:
        mean: Log speed-up; exp(mean) is the speed-up.
        standard_error: Of the mean.
        dof: Degrees of freedom of the standard error.
        pairs: k.
    """

    mean: float
    standard_error: float
    dof: float
    pairs: int

    def interval(self, level: float) -> tuple[float, float]:
        """Student-t interval of the log speed-up that covers the truth with probability `level`."""
        half = student_quantile(self.dof, 0.5 + 0.5 * level) * self.standard_error
        return self.mean - half, self.mean + half

    def p_value_above(self, margin: float) -> float:
        """One-sided p-value of "the log speed-up is at most `margin`"."""
        gap = self.mean - margin
        if self.standard_error == 0.0:
            return 0.0 if gap > 0.0 else 1.0
        return float(stdtr(self.dof, -gap / self.standard_error))


@dataclass(frozen=True)
class Verdict:
    """Whether one finalist's gain is proven.

    Attributes:
        estimate: From its pairs.
        lower: Lower end of the interval at the level of the verification, log speed-up.
        upper: Upper end.
        margin: Log speed-up that had to be exceeded.
        adjusted_p: One-sided p-value against the margin after Holm's correction.
        verified: adjusted_p is small enough; for one finalist the same as lower > margin.
    """

    estimate: PairedEstimate
    lower: float
    upper: float
    margin: float
    adjusted_p: float
    verified: bool


def compare(log_ratios: ArrayLike, noise: NoiseEstimate | None = None) -> PairedEstimate | None:
    """Summarise pairs.

    Args:
        log_ratios: log(baseline / finalist) of each pair, shape (k,).
        noise: Between-run noise of diagnosis (of one run, not of a difference) to pool with, if given.

    Returns:
        The estimate, or None when fewer than two pairs are left.
    """
    ratios = finite_vector("paired log ratios", log_ratios)
    pairs = ratios.shape[0]
    if pairs < 2:
        return None
    variance, dof = float(np.var(ratios, ddof=1)), float(pairs - 1)
    if noise is not None:
        variance = (dof * variance + noise.dof * 2.0 * noise.sd**2) / (dof + noise.dof)
        dof += noise.dof
    return PairedEstimate(float(ratios.mean()), math.sqrt(variance / pairs), dof, pairs)


def holm(p_values: ArrayLike) -> FloatArray:
    """Holm's step-down adjusted p-values: comparing each with alpha controls the family-wise error at alpha.

    Args:
        p_values: Shape (m,).

    Returns:
        Shape (m,), in the order given, none below its p-value, none above 1.
    """
    raw = finite_vector("p-values", p_values)
    order = np.argsort(raw, kind="stable")
    steps = raw[order] * np.arange(raw.shape[0], 0, -1)
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def verify(
    finalists: Sequence[PairedEstimate], tellable: float, level: float = VERIFICATION_LEVEL
) -> tuple[Verdict, ...]:
    """Decide which finalists are verified.

    Args:
        finalists: One estimate each; all finalists that were re-run, also the losing ones.
        tellable: Smallest log speed-up that the noise of diagnosis lets us tell, >= 0.
        level: Two-sided level of the interval.

    Returns:
        A verdict for each, in the order given. The margin is log(1 + max(1 %, tellable as a ratio)).

    Raises:
        ValueError: More finalists than a verification may have, or a negative or non-finite `tellable`.
    """
    if len(finalists) > MOST_FINALISTS:
        raise ValueError(f"{len(finalists)} finalists: at most {MOST_FINALISTS} may be verified")
    if not 0.0 <= tellable < math.inf:
        raise ValueError(f"smallest tellable effect = {tellable}: must be a finite number >= 0")
    margin = max(SMALLEST_CLAIM, tellable)
    adjusted = holm([finalist.p_value_above(margin) for finalist in finalists])
    return tuple(
        Verdict(finalist, *finalist.interval(level), margin, p, p < 0.5 * (1.0 - level))
        for finalist, p in zip(finalists, adjusted.tolist(), strict=True)
    )


def minimum_detectable_effect(
    sigma: float, pairs: int, confidence: float = 0.95, power: float = 0.8
) -> float:
    """Log speed-up that `pairs` pairs find with the given power, sigma known: for planning.

    Args:
        sigma: Between-run standard deviation of log step time.
        pairs: Number of pairs, >= 1.
        confidence: Two-sided level.
        power: Chance to find it.

    Returns:
        (z_confidence + z_power) sigma sqrt(2 / pairs), log units.
    """
    quantiles = float(ndtri(0.5 + 0.5 * confidence)) + float(ndtri(power))
    return quantiles * sigma * math.sqrt(2.0 / pairs)
