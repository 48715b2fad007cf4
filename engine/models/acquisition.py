"""What to try next: expected improvement under a Student-t belief, weighed by risk and cost; Thompson draws.

Source: Jones, Schonlau & Welch (1998), J. Global Optimization 13 (expected improvement); Gardner et al.
(2014) and Gelbart, Snoek & Adams (2014) (feasibility weights); Snoek, Larochelle & Adams (2012) (per unit of
cost); Ament et al. (2023) (log form); Thompson (1933), Russo et al. (2018) (sampling).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import hyp2f1

from engine.models.arrays import BoolArray, FloatArray, finite_matrix, finite_vector, positive_vector
from engine.models.speed import SpeedPosterior
from engine.models.student_t import StudentT, student_cdf, student_log_density

# Below this the closed form is near the smallest double, and the tail series takes over.
_SMALLEST_PLAIN = 1e-280


@dataclass(frozen=True)
class Incumbent:
    """The best candidate so far.

    Attributes:
        index: Its row.
        value: Posterior mean of its log speed-up, which the luck of one measurement does not inflate.
    """

    index: int
    value: float


def incumbent(posterior_mean: ArrayLike, eligible: ArrayLike) -> Incumbent | None:
    """Best measured candidate by posterior mean, not by its noisy measurement (winner's curse).

    Args:
        posterior_mean: x^T m of the measured candidates, shape (k,).
        eligible: Which of them are valid, boolean, shape (k,).

    Returns:
        The incumbent, or None when none is eligible.
    """
    mean = finite_vector("posterior mean", posterior_mean)
    allowed = np.flatnonzero(_flags(eligible, mean.shape[0]))
    if allowed.size == 0:
        return None
    index = int(allowed[np.argmax(mean[allowed])])
    return Incumbent(index, float(mean[index]))


def expected_improvement(belief: StudentT, best: float) -> FloatArray:
    """E[max(f - best, 0)] for f ~ mean + scale * t_dof.

    Args:
        belief: m candidates, without measurement noise; more than one degree of freedom.
        best: Value of the incumbent, same units.

    Returns:
        Shape (m,), >= 0; max(mean - best, 0) where the scale is 0.

    Raises:
        ValueError: The belief has no mean (dof <= 1).
    """
    if belief.dof <= 1.0:
        raise ValueError(f"dof = {belief.dof}: expected improvement needs more than one degree of freedom")
    gap = belief.mean - best
    known = belief.scale <= 0.0
    z = gap / np.where(known, 1.0, belief.scale)
    tail = (belief.dof + z**2) / (belief.dof - 1.0) * np.exp(student_log_density(belief.dof, z))
    uncertain = gap * student_cdf(belief.dof, z) + belief.scale * tail
    return np.maximum(np.where(known, gap, uncertain), 0.0)


def log_expected_improvement(belief: StudentT, best: float) -> FloatArray:
    """Log of `expected_improvement`, finite far below the smallest double; -inf where it is exactly 0.

    Args:
        belief: m candidates; more than one degree of freedom.
        best: Value of the incumbent.

    Returns:
        Shape (m,).
    """
    plain = expected_improvement(belief, best)
    with np.errstate(divide="ignore"):
        result = np.log(plain)
    tiny = (plain < _SMALLEST_PLAIN) & (belief.scale > 0.0)
    if np.any(tiny):
        scale = belief.scale[tiny]
        result[tiny] = np.log(scale) + _log_tail((belief.mean[tiny] - best) / scale, belief.dof)
    return np.asarray(result, dtype=np.float64)


def expected_cost(
    p_fits: ArrayLike,
    p_compatible: ArrayLike,
    success: float,
    out_of_memory: float,
    conflict: float,
    wait: float = 0.0,
) -> FloatArray:
    """Expected price of one trial; a failed trial ends early and is cheaper than a full one.

    Args:
        p_fits: P(memory suffices), shape (m,) or scalar.
        p_compatible: P(no conflict), shape (m,) or scalar.
        success: Price of a trial that runs to its end (GPU-hours).
        out_of_memory: Price of one that runs out of memory.
        conflict: Price of one that fails on a conflict.
        wait: Price of queueing, paid every time.

    Returns:
        Shape (m,) in the unit of the prices.
    """
    fits, compatible = np.asarray(p_fits, dtype=np.float64), np.asarray(p_compatible, dtype=np.float64)
    runs = fits * success + (1.0 - fits) * out_of_memory
    return np.asarray(wait + compatible * runs + (1.0 - compatible) * conflict, dtype=np.float64)


def score(
    ei: ArrayLike, p_compatible: ArrayLike, p_fits: ArrayLike, cost: ArrayLike, floor: float
) -> FloatArray:
    """Expected improvement per unit of cost, weighed by the chance that the trial runs at all.

    Args:
        ei: Expected improvement, shape (m,), >= 0.
        p_compatible: P(no conflict), shape (m,) or scalar.
        p_fits: P(memory suffices), shape (m,) or scalar.
        cost: Expected price, shape (m,) or scalar, > 0.
        floor: Candidates with p_fits below it score 0: failures are cheap, so price alone would invite them.

    Returns:
        Shape (m,), >= 0.
    """
    with np.errstate(divide="ignore"):
        logs = np.log(finite_vector("expected improvement", ei))
    return np.exp(log_score(logs, p_compatible, p_fits, cost, floor))


def log_score(
    log_ei: ArrayLike, p_compatible: ArrayLike, p_fits: ArrayLike, cost: ArrayLike, floor: float
) -> FloatArray:
    """Log of `score`, for improvements that underflow; -inf for candidates that must not be chosen."""
    logs = np.asarray(log_ei, dtype=np.float64)
    size = logs.shape[0]
    compatible = finite_vector("p_compatible", np.broadcast_to(p_compatible, (size,)))
    fits = finite_vector("p_fits", np.broadcast_to(p_fits, (size,)))
    price = positive_vector("cost", np.broadcast_to(cost, (size,)))
    with np.errstate(divide="ignore"):
        total = logs + np.log(compatible) + np.log(fits) - np.log(price)
    return np.where(fits >= floor, total, -math.inf)


def choose(log_scores: ArrayLike) -> int | None:
    """Row of the highest log score, shape (m,); None when every candidate is excluded."""
    logs = np.asarray(log_scores, dtype=np.float64)
    if logs.size == 0 or not np.any(logs > -math.inf):
        return None
    return int(np.argmax(logs))


def thompson_draw(
    posterior: SpeedPosterior, x: ArrayLike, eligible: ArrayLike, rng: np.random.Generator
) -> int | None:
    """Best eligible candidate under one joint draw of the effects; repeat for diverse parallel trials.

    Args:
        posterior: Speed model over d coefficients.
        x: Candidates, shape (m, d).
        eligible: Boolean, shape (m,), e.g. P(fits) above its floor.
        rng: Source of the draw.

    Returns:
        A row of x, or None when none is eligible.
    """
    rows = finite_matrix("candidates", x, posterior.prior.dimension)
    drawn = incumbent(rows @ posterior.sample(rng), eligible)
    return None if drawn is None else drawn.index


def _log_tail(z: FloatArray, dof: float) -> FloatArray:
    """Log of E[max(t + z, 0)] for z far below 0, from T(-|z|) = t(z) |z| F / dof, F hypergeometric."""
    ratio = dof / (dof + z**2)
    series = hyp2f1(0.5 * (dof + 1.0), 1.0, 0.5 * dof + 1.0, ratio)
    bracket = (dof + z**2) / (dof - 1.0) - z**2 * series / dof
    return np.asarray(student_log_density(dof, z) + np.log(bracket), dtype=np.float64)


def _flags(value: ArrayLike, length: int) -> BoolArray:
    flags = np.asarray(value, dtype=np.bool_)
    if flags.shape != (length,):
        raise ValueError(f"eligible: shape {flags.shape}, expected ({length},)")
    return flags
