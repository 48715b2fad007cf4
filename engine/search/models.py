"""Posteriors of speed and memory as a pure function of the observations; their order does not matter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from engine.models.arrays import FloatArray
from engine.models.calibration import Advice, Trust, calibrate
from engine.models.speed import SpeedPosterior, SpeedPrior
from engine.models.student_t import StudentT
from engine.search.encode import Encoder, build_encoder, level_name
from engine.search.lattice import Lattice, Rows, build_lattice, value_key
from engine.search.memory_fit import MemoryFit, fit_memory
from engine.search.view import Effect, Observation, SearchInput

_EFFECT_SD = {"intercept": 0.03, "level": 0.08, "size": 0.15, "pair": 0.05}
_NOISE_DOF = 6.0
_LACK_OF_FIT_SD = 0.015
_SMALLEST_SD = 0.002
_SCALES = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_LOG_SCALE_SD = 0.7


@dataclass(frozen=True, eq=False)
class FittedModels:
    """What the observations say.

    Attributes:
        lattice: Axes of the candidates.
        encoder: Features of the candidates.
        speed: Belief about effects on the log speed-up.
        trust: What the measurements say about the advisor.
        scale: Size of effects in this task relative to a usual one.
        memory: Belief about peak memory; None where nothing is known about it.
        noise_variance: Of one full trial's log speed-up, from the diagnosis.
        observed: Every candidate that ran and was measured.
    """

    lattice: Lattice
    encoder: Encoder
    speed: SpeedPosterior
    trust: Trust
    scale: float
    memory: MemoryFit | None
    noise_variance: float
    observed: tuple[Observed, ...]

    @property
    def lack_of_fit(self) -> float:
        """Variance of what a candidate has beyond its encoded effects: residual variance minus noise."""
        return max(0.0, self.speed.b / self.speed.a - self.noise_variance)

    def belief(self, features: FloatArray) -> StudentT:
        """True log speed-up of candidates that were not measured, features (m, d)."""
        effects = self.speed.predict(features)
        return StudentT(effects.mean, np.sqrt(effects.scale**2 + self.lack_of_fit), effects.dof)

    def p_fits(self, features: FloatArray) -> FloatArray:
        """P(peak memory leaves the headroom free), shape (m,); 1 where no limit is known."""
        if self.memory is None:
            return np.ones(features.shape[0])
        return self.memory.p_fits(features)

    def measured_value(self, observed: Observed, mean: float) -> float:
        """Posterior mean of a measured candidate: its effects plus the credible part of its own residual."""
        own = self.lack_of_fit
        weight = own / (own + self.noise_variance * observed.relative_variance) if own > 0.0 else 0.0
        return mean + weight * (observed.log_speedup - mean)


@dataclass(frozen=True, eq=False)
class Observed:
    """All measurements of one candidate, averaged.

    Attributes:
        row: Its levels, shape (A,).
        log_speedup: Average, weighted by precision.
        relative_variance: Of the average.
        memory_gib: Largest peak seen, where measured.
        trials: How many.
    """

    row: Rows
    log_speedup: float
    relative_variance: float
    memory_gib: float | None
    trials: int


def fit_models(search: SearchInput) -> FittedModels:
    """Fit both models to everything that may be shown to them.

    Args:
        search: The decision's input; only its observations, effects and noise are read.

    Returns:
        The models; with no observation at all they are their priors.
    """
    lattice = build_lattice(search)
    encoder = build_encoder(lattice)
    seen = sorted(
        (each for each in search.observations if each.visible),
        key=lambda each: (each.candidate.key(), each.trial_id),
    )
    measured = [each for each in seen if each.ran and each.log_speedup is not None]
    features = encoder.encode(lattice.rows([each.candidate for each in measured]))
    gains = np.array([each.log_speedup for each in measured], dtype=np.float64)
    variances = np.array([each.relative_variance for each in measured], dtype=np.float64)
    noise_sd = max(search.noise_sd, _SMALLEST_SD)
    scale = _effect_scale(encoder, noise_sd, features, gains, variances)
    advice = _advice(lattice, encoder, search.effects)
    calibrated = calibrate(_prior(encoder, noise_sd, scale), advice, features, gains, variances)
    prior = _with_history(lattice, encoder, search.effects, calibrated.prior)
    return FittedModels(
        lattice=lattice,
        encoder=encoder,
        speed=SpeedPosterior.fit(prior, features, gains, variances),
        trust=calibrated.trust,
        scale=scale,
        memory=fit_memory(search, lattice, encoder, seen),
        noise_variance=noise_sd**2,
        observed=_observed(lattice, measured),
    )


def effect_column(lattice: Lattice, encoder: Encoder, effect: Effect) -> int | None:
    """Column of a believed change; None when it is the baseline's level or not in the space."""
    position = lattice.position.get(effect.mechanism)
    if position is None:
        return None
    axis = lattice.axes[position]
    level = axis.levels.get(value_key(effect.value))
    return None if level is None else encoder.index.get(level_name(axis, level))


def _prior(encoder: Encoder, noise_sd: float, scale: float) -> SpeedPrior:
    spread = np.array([_EFFECT_SD[kind] * (1.0 if kind == "intercept" else scale) for kind in encoder.kinds])
    residual = math.hypot(noise_sd, _LACK_OF_FIT_SD)
    return SpeedPrior.from_scales(np.zeros(spread.shape[0]), spread, residual, _NOISE_DOF)


def _effect_scale(
    encoder: Encoder, noise_sd: float, features: FloatArray, gains: FloatArray, variances: FloatArray
) -> float:
    """Size of effects in this task, averaged over a grid by evidence (Bishop 2006, section 3.5)."""
    logs = np.log(_SCALES)
    scores = [
        SpeedPosterior.fit(_prior(encoder, noise_sd, scale), features, gains, variances).log_evidence()
        - 0.5 * (math.log(scale) / _LOG_SCALE_SD) ** 2
        for scale in _SCALES
    ]
    return float(np.exp(np.exp(np.asarray(scores) - logsumexp(scores)) @ logs))


def _advice(lattice: Lattice, encoder: Encoder, effects: Sequence[Effect]) -> Advice:
    by_column = {
        column: effect
        for effect in effects
        if effect.source == "advisor" and (column := effect_column(lattice, encoder, effect)) is not None
    }
    columns = sorted(by_column)
    return Advice(
        np.array(columns, dtype=np.int64),
        np.array([by_column[column].log_speedup for column in columns], dtype=np.float64),
        np.array([by_column[column].sd for column in columns], dtype=np.float64),
    )


def _with_history(
    lattice: Lattice, encoder: Encoder, effects: Sequence[Effect], prior: SpeedPrior
) -> SpeedPrior:
    mean, precision = np.zeros(prior.dimension), np.zeros(prior.dimension)
    for effect in effects:
        column = effect_column(lattice, encoder, effect)
        if effect.source == "history" and column is not None:
            weight = prior.noise_variance / effect.sd**2
            total = precision[column] + weight
            mean[column] = (precision[column] * mean[column] + weight * effect.log_speedup) / total
            precision[column] = total
    return prior.informed_by(mean, precision)


def _observed(lattice: Lattice, measured: Sequence[Observation]) -> tuple[Observed, ...]:
    groups: dict[bytes, list[Observation]] = {}
    for each in measured:
        groups.setdefault(lattice.row(each.candidate).tobytes(), []).append(each)
    return tuple(_average(lattice, group) for group in groups.values())


def _average(lattice: Lattice, group: Sequence[Observation]) -> Observed:
    precision = [1.0 / each.relative_variance for each in group]
    total = sum(precision)
    gains = [each.log_speedup for each in group if each.log_speedup is not None]
    peaks = [each.memory_gib for each in group if each.memory_gib is not None]
    return Observed(
        row=lattice.row(group[0].candidate),
        log_speedup=sum(weight * gain for weight, gain in zip(precision, gains, strict=True)) / total,
        relative_variance=1.0 / total,
        memory_gib=max(peaks, default=None),
        trials=len(group),
    )
