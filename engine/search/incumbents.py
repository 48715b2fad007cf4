"""The best candidates that were measured: by posterior mean, never by the luckiest number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.models.noise import NoiseEstimate, search_margin
from engine.schema.trial import Candidate, OutcomeKind
from engine.search.lattice import Rows
from engine.search.memory_fit import usable_memory
from engine.search.models import FittedModels, Observed, fit_models
from engine.search.view import SearchInput

_PREDICTED_FIT = 0.5


@dataclass(frozen=True, eq=False)
class Standing:
    """A measured candidate and what its true log speed-up is believed to be.

    Attributes:
        row: Its levels, shape (A,).
        value: Posterior mean.
        observed: Its measurements; None for the baseline before it is among the observations.
    """

    row: Rows
    value: float
    observed: Observed | None


@dataclass(frozen=True)
class Finalist:
    """A measured candidate that is worth the verification runs.

    Attributes:
        candidate: What to verify.
        log_speedup: Posterior mean.
        measured: Average of its measurements.
        memory_gib: Largest measured peak, where measured.
    """

    candidate: Candidate
    log_speedup: float
    measured: float
    memory_gib: float | None


def improvement_threshold(search: SearchInput) -> float:
    """Smallest difference of log speed-ups that counts as a valid improvement: max(1 %, 2 sigma sqrt 2)."""
    return search_margin(NoiseEstimate(search.noise_sd, search.noise_dof))


def standings(search: SearchInput, models: FittedModels) -> list[Standing]:
    """Deployable measured candidates, best first; the baseline is always one of them.

    A candidate that broke an invariant in any of its trials is not deployable, nor is one whose peak
    (measured, or else predicted) does not leave the headroom free.
    """
    usable = usable_memory(search)
    broken = {
        models.lattice.row(seen.candidate).tobytes()
        for seen in search.observations
        if seen.kind is OutcomeKind.REJECTED
    }
    baseline = models.lattice.baseline
    features = models.encoder.encode(_stack(models))
    means, chances = models.speed.predict(features).mean, models.p_fits(features)
    ranked = []
    for observed, mean, chance in zip(models.observed, means, chances, strict=True):
        peak = observed.memory_gib
        fits = chance >= _PREDICTED_FIT if usable is None or peak is None else peak <= usable
        original = np.array_equal(observed.row, baseline)
        if original or (fits and observed.row.tobytes() not in broken):
            ranked.append(Standing(observed.row, models.measured_value(observed, float(mean)), observed))
    if not any(np.array_equal(standing.row, baseline) for standing in ranked):
        ranked.append(Standing(baseline, 0.0, None))
    return sorted(ranked, key=lambda standing: (-standing.value, standing.row.tobytes()))


def finalists(search: SearchInput, k: int = 3) -> list[Finalist]:
    """Candidates to verify against the baseline, best first.

    Args:
        search: The decision's input.
        k: At most so many.

    Returns:
        Measured candidates whose posterior mean lies above the baseline's by a valid improvement; empty when
        nothing is believed to be better.
    """
    models = fit_models(search)
    ranked = standings(search, models)
    baseline = next(each.value for each in ranked if np.array_equal(each.row, models.lattice.baseline))
    bar = baseline + improvement_threshold(search)
    return [
        Finalist(
            candidate=models.lattice.candidate(standing.row),
            log_speedup=standing.value,
            measured=standing.observed.log_speedup,
            memory_gib=standing.observed.memory_gib,
        )
        for standing in ranked
        if standing.observed is not None and standing.value > bar
    ][:k]


def _stack(models: FittedModels) -> Rows:
    width = len(models.lattice.axes)
    return np.array([observed.row for observed in models.observed], dtype=np.int16).reshape(-1, width)
