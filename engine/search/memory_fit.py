"""Peak memory of candidates: measured runs are exact, runs out of memory are lower bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.models.arrays import FloatArray
from engine.models.memory import MemoryPosterior, MemoryPrior
from engine.models.tobit import NotConverged
from engine.search.encode import Encoder, doublings, level_name, size_name, sizes
from engine.search.lattice import Lattice, value_key
from engine.search.view import Effect, Observation, SearchInput

_EFFECT_SD = {"intercept": 0.05, "level": 0.25, "size": 0.5, "pair": 0.2}
_UNKNOWN_BASELINE_SD = 1.0
_NOISE_SD = 0.05
_NOISE_DOF = 6.0
_BELIEF_SLACK_SD = 0.1
_PER_DOUBLING = {"micro_batch_size": 0.3}
"""Log memory per doubling expected beforehand; activations are roughly half of the peak and grow with it."""


@dataclass(frozen=True, eq=False)
class MemoryFit:
    """A posterior with the units it was fitted in.

    Attributes:
        posterior: Of log(peak / unit).
        unit_gib: The unit: the baseline's peak where measured.
        usable_gib: Limit minus headroom; None where no limit is known.
    """

    posterior: MemoryPosterior
    unit_gib: float
    usable_gib: float | None

    def p_fits(self, features: FloatArray) -> FloatArray:
        """P(peak <= usable), shape (m,)."""
        if self.usable_gib is None:
            return np.ones(features.shape[0])
        return self.posterior.probability_fits(features, math.log(self.usable_gib / self.unit_gib))

    def peak_gib(self, features: FloatArray) -> FloatArray:
        """Median of the predicted peak, shape (m,)."""
        mean, _ = self.posterior.predict(features)
        return np.asarray(self.unit_gib * np.exp(mean), dtype=np.float64)


def usable_memory(search: SearchInput) -> float | None:
    """GiB that a candidate may use: the limit, or else the least known not to fit, minus the headroom."""
    bounds = [seen.memory_bound_gib for seen in search.observations if seen.out_of_memory]
    known = [bound for bound in bounds if bound is not None]
    limit = search.memory_limit_gib if search.memory_limit_gib is not None else min(known, default=None)
    return None if limit is None else limit * (1.0 - search.headroom)


def tells_memory(seen: Observation, usable: float | None) -> bool:
    """Whether a run out of memory can be used as a lower bound."""
    return seen.out_of_memory and (seen.memory_bound_gib is not None or usable is not None)


def fit_memory(
    search: SearchInput, lattice: Lattice, encoder: Encoder, seen: Sequence[Observation]
) -> MemoryFit | None:
    """Fit the censored model.

    Args:
        search: The decision's input.
        lattice: Axes.
        encoder: Features.
        seen: Visible observations in a canonical order.

    Returns:
        The fit, or None when neither a limit nor any measurement is known, or when they admit no fit.
    """
    usable = usable_memory(search)
    exact = [(each, peak) for each in seen if each.ran and (peak := each.memory_gib) is not None]
    # What did not fit needed more than what is usable, even where the failing allocation shows less.
    bounds = [
        (each, max(each.memory_bound_gib or 0.0, usable or 0.0))
        for each in seen
        if tells_memory(each, usable)
    ]
    peaks = [*exact, *bounds]
    typical = float(np.median([peak for _, peak in peaks])) if peaks else usable
    unit = search.baseline_memory_gib or typical
    if unit is None:
        return None
    features = encoder.encode(lattice.rows([each.candidate for each, _ in peaks]))
    response = np.log([peak / unit for _, peak in peaks])
    prior = _prior(lattice, encoder, search.effects, known_baseline=search.baseline_memory_gib is not None)
    censored = np.arange(len(peaks)) >= len(exact)
    try:
        posterior = MemoryPosterior.fit(prior, features, response, censored)
    except NotConverged:
        return None
    return MemoryFit(posterior, unit, usable)


def _prior(
    lattice: Lattice, encoder: Encoder, effects: Sequence[Effect], *, known_baseline: bool
) -> MemoryPrior:
    spread = np.array([_EFFECT_SD[kind] for kind in encoder.kinds])
    mean = np.zeros(spread.shape[0])
    if not known_baseline:
        spread[0] = _UNKNOWN_BASELINE_SD
    for axis in lattice.axes:
        size, column = sizes(axis), encoder.index.get(size_name(axis.name))
        if size is not None and column is not None:
            mean[column] = _PER_DOUBLING.get(axis.name, 0.0) * doublings(size)
    for effect in effects:
        _believe(lattice, encoder, effect, mean, spread)
    return MemoryPrior.from_scales(mean, spread, _NOISE_SD, _NOISE_DOF)


def _believe(
    lattice: Lattice, encoder: Encoder, effect: Effect, mean: FloatArray, spread: FloatArray
) -> None:
    """Write one belief into the prior; what a size's slope already says is taken off its level."""
    position = lattice.position.get(effect.mechanism)
    if position is None or effect.log_memory is None or effect.memory_sd is None:
        return
    axis = lattice.axes[position]
    level = axis.levels.get(value_key(effect.value))
    column = None if level is None else encoder.index.get(level_name(axis, level))
    if level is None or column is None:
        return
    others = encoder.tables[position][level] @ mean[list(encoder.own[position])] - mean[column]
    mean[column] = effect.log_memory - float(others)
    spread[column] = math.hypot(effect.memory_sd, _BELIEF_SLACK_SD)
