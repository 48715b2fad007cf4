"""How far to trust predicted effects: empirical Bayes on (predicted, observed) log speed-ups.

An advisor predicts mu_j with standard deviation s_j for some features. Their prior becomes
w_j ~ N(a mu_j, tau^2 (1 + s~_j^2) / 2) with s~_j = s_j / median(s): a is the trust, tau the spread of the
median prediction, and an unsure prediction leaves its effect wide, so it is still worth a trial. (a, tau) is
weighed on a grid by evidence times hyper-prior and averaged over, never maximised: few trials settle little.

Source: type-II likelihood, Bishop (2006), section 3.5; shrinkage, Efron & Morris (1973), JASA 68; model
averaging, Hoeting et al. (1999), Statistical Science 14.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp
from scipy.stats import rankdata

from engine.models.arrays import FloatArray, IntArray, finite_vector, positive_vector
from engine.models.speed import SpeedPosterior, SpeedPrior

_SILENCE_FROM = 6
_MEASURED_SHARE = 0.5
_DECILE_WIDTH = 2.563


@dataclass(frozen=True, eq=False)
class Advice:
    """Predicted effects.

    Attributes:
        columns: Features they speak about, shape (J,), distinct.
        gain: mu, predicted effect on the log speed-up, shape (J,).
        sd: s, standard deviation of the prediction, shape (J,), > 0.
    """

    columns: IntArray
    gain: FloatArray
    sd: FloatArray

    def __post_init__(self) -> None:
        """Copy, check and seal the arrays.

        Raises:
            ValueError: Shapes differ, a column is named twice, or a number is not finite or not positive.
        """
        columns = np.array(self.columns, dtype=np.int64)
        if columns.ndim != 1 or np.unique(columns).shape != columns.shape or np.any(columns < 0):
            raise ValueError("advised columns: expected distinct indices from 0 up, shape (J,)")
        object.__setattr__(self, "columns", columns)
        object.__setattr__(self, "gain", finite_vector("advised gain", self.gain, columns.shape[0]))
        object.__setattr__(self, "sd", positive_vector("advised sd", self.sd, columns.shape[0]))

    @classmethod
    def from_quantiles(cls, columns: ArrayLike, low: ArrayLike, middle: ArrayLike, high: ArrayLike) -> Self:
        """Build from 10 %, 50 % and 90 % quantiles of the log speed-up, each shape (J,)."""
        width = finite_vector("advised 90 % quantile", high) - finite_vector("advised 10 % quantile", low)
        gain = finite_vector("advised median", middle)
        return cls(np.asarray(columns, dtype=np.int64), gain, width / _DECILE_WIDTH)


@dataclass(frozen=True)
class HyperPrior:
    """Belief about trust and spread before any trial.

    Attributes:
        trusts: Grid of a, within [0, 1].
        spreads: Grid of tau, log speed-up units, > 0.
        trust_mean: Centre of a.
        trust_sd: Standard deviation of a.
        spread_median: Median of tau.
        spread_log_sd: Standard deviation of log tau.
    """

    trusts: tuple[float, ...] = (0.0, 1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0)
    spreads: tuple[float, ...] = (0.03, 0.06, 0.12)
    trust_mean: float = 0.4
    trust_sd: float = 0.35
    spread_median: float = 0.06
    spread_log_sd: float = 0.6

    def log_density(self, trust: float, spread: float) -> float:
        """Log density of a grid point, up to a constant."""
        trust_z = (trust - self.trust_mean) / self.trust_sd
        spread_z = math.log(spread / self.spread_median) / self.spread_log_sd
        return -0.5 * (trust_z**2 + spread_z**2)


@dataclass(frozen=True)
class Trust:
    """What the measurements say about an advisor.

    Attributes:
        mean: Posterior mean of a, 0 when silenced.
        sd: Posterior standard deviation of a, 0 when silenced.
        spread: Posterior mean of tau, log speed-up units; None when silenced, for then it is not used.
        rank_correlation: Spearman's rho of predicted with measured effects; None where it has no value.
        measured: Number of advised effects that the data determine, the n behind the correlation.
        silenced: True when enough effects were measured and the ranking is no better than reversed.
    """

    mean: float
    sd: float
    spread: float | None
    rank_correlation: float | None
    measured: int
    silenced: bool


@dataclass(frozen=True, eq=False)
class Calibrated:
    """The prior to search with, and why."""

    prior: SpeedPrior
    trust: Trust


def calibrate(
    prior: SpeedPrior,
    advice: Advice,
    x: ArrayLike,
    y: ArrayLike,
    relative_variance: ArrayLike | None = None,
    hyper: HyperPrior = HyperPrior(),
) -> Calibrated:
    """Turn predictions into a prior that is as strong as they deserve.

    Args:
        prior: Belief without the advisor, over d coefficients; returned as is when the advisor is silenced.
        advice: Predicted effects of J of the d features.
        x: Features, shape (n, d); n may be 0, then the hyper-prior alone decides.
        y: Log speed-ups, shape (n,).
        relative_variance: Shape (n,), see `SpeedPosterior.fit`.
        hyper: Belief about trust and spread before any trial.

    Returns:
        The prior, its advised entries with the mean and variance of the mixture over the grid, and the trust.

    Raises:
        ValueError: Shapes differ, a number is not finite, or an advised column does not exist.
    """
    if advice.columns.size == 0:
        return Calibrated(prior, Trust(0.0, 0.0, None, None, 0, silenced=False))
    if int(advice.columns.max()) >= prior.dimension:
        raise ValueError(
            f"advised column {int(advice.columns.max())}: the model has {prior.dimension} features"
        )
    correlation, measured = _agreement(prior, advice, SpeedPosterior.fit(prior, x, y, relative_variance))
    if measured >= _SILENCE_FROM and correlation is not None and correlation <= 0.0:
        return Calibrated(prior, Trust(0.0, 0.0, None, correlation, measured, silenced=True))
    grid = [(trust, spread) for trust in hyper.trusts for spread in hyper.spreads]
    scores = [
        hyper.log_density(trust, spread)
        + SpeedPosterior.fit(_advised(prior, advice, trust, spread), x, y, relative_variance).log_evidence()
        for trust, spread in grid
    ]
    weights = np.exp(np.asarray(scores) - logsumexp(scores))
    trusts, spreads = np.asarray(grid).T
    mean = float(weights @ trusts)
    variance = float(weights @ (trusts - mean) ** 2)
    mixed = _with_effects(
        prior,
        advice,
        mean * advice.gain,
        float(weights @ spreads**2) * _widening(advice) + variance * advice.gain**2,
    )
    spread = float(weights @ spreads)
    return Calibrated(mixed, Trust(mean, math.sqrt(variance), spread, correlation, measured, silenced=False))


def rank_correlation(first: FloatArray, second: FloatArray) -> float | None:
    """Spearman's rho, mid-ranks for ties; None for fewer than two values or a constant side; shapes (k,)."""
    if first.shape[0] < 2:
        return None
    left, right = (np.asarray(rankdata(values), dtype=np.float64) for values in (first, second))
    left, right = left - left.mean(), right - right.mean()
    norm = math.sqrt(float(left @ left) * float(right @ right))
    return float(left @ right) / norm if norm > 0.0 else None


def _agreement(prior: SpeedPrior, advice: Advice, posterior: SpeedPosterior) -> tuple[float | None, int]:
    """Rank correlation over those advised effects whose variance is now below half of the prior's."""
    leverage = posterior.leverage(np.eye(prior.dimension))
    determined = (leverage * prior.precision)[advice.columns] < _MEASURED_SHARE
    observed = posterior.mean[advice.columns]
    return rank_correlation(advice.gain[determined], observed[determined]), int(np.count_nonzero(determined))


def _advised(prior: SpeedPrior, advice: Advice, trust: float, spread: float) -> SpeedPrior:
    return _with_effects(prior, advice, trust * advice.gain, spread**2 * _widening(advice))


def _widening(advice: Advice) -> FloatArray:
    relative = advice.sd / float(np.median(advice.sd))
    return 0.5 * (1.0 + relative**2)


def _with_effects(prior: SpeedPrior, advice: Advice, mean: FloatArray, variance: FloatArray) -> SpeedPrior:
    means, precisions = prior.mean.copy(), prior.precision.copy()
    means[advice.columns] = mean
    precisions[advice.columns] = prior.noise_variance / variance
    return replace(prior, mean=means, precision=precisions)
