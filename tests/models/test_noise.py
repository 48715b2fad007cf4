"""Noise estimates find the spread that was put in, and stragglers do not fool them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from engine.models import noise
from engine.models.noise import NoiseEstimate


def test_within_run_spread_ignores_stragglers() -> None:
    """Ten per cent of steps that take three times as long move the robust estimate by little."""
    rng = np.random.default_rng(0)
    times = 0.5 * np.exp(rng.normal(0.0, 0.01, 2000))
    clean = noise.within_run(times)
    times[::10] *= 3.0
    spoiled = noise.within_run(times)
    assert clean is not None
    assert spoiled is not None
    assert clean.sd == pytest.approx(0.01, rel=0.06)
    assert spoiled.sd == pytest.approx(0.01, rel=0.25)
    assert clean.dof == pytest.approx(0.3675 * 1999)


def test_degrees_of_freedom_match_the_spread_of_the_estimate() -> None:
    """The variance of the robust estimate is that of a chi with the stated degrees of freedom."""
    rng = np.random.default_rng(1)
    found = [noise.within_run(np.exp(rng.normal(0.0, 0.01, 100))) for _ in range(2000)]
    values = np.array([estimate.sd for estimate in found if estimate is not None])
    relative = float(values.std() / values.mean())
    assert 1.0 / (2.0 * relative**2) == pytest.approx(0.3675 * 99, rel=0.15)


def test_between_runs_uses_means() -> None:
    """The spread is that of the runs' means, slow steps included, and scale does not matter."""
    runs = [0.2 * np.exp(shift) * np.array([0.9, 1.0, 5.0]) for shift in (0.0, 0.01, 0.02)]
    found = noise.between_runs(runs)
    assert found is not None
    assert found.sd == pytest.approx(0.01)
    assert found.dof == 2.0
    assert noise.between_runs(runs[:1]) is None


def test_pooling_is_the_weighted_mean_of_variances() -> None:
    """Two groups pool to the sample variance of all deviations from their own group mean."""
    rng = np.random.default_rng(2)
    groups = [rng.normal(0.0, 0.02, 4), rng.normal(5.0, 0.02, 9)]
    pooled = noise.pool([NoiseEstimate(float(np.std(g, ddof=1)), len(g) - 1.0) for g in groups])
    assert pooled is not None
    deviations = np.concatenate([g - g.mean() for g in groups])
    assert pooled.sd == pytest.approx(math.sqrt(float(deviations @ deviations) / 11.0))
    assert pooled.dof == 11.0
    assert noise.pool([]) is None


def test_too_few_steps_have_no_spread() -> None:
    """Two steps give no estimate instead of zero."""
    assert noise.within_run([1.0, 1.1]) is None


def test_smallest_tellable_shrinks_with_pairs_and_knowledge() -> None:
    """More pairs and more degrees of freedom tell smaller effects; with many it is the normal formula."""
    sharp, vague = NoiseEstimate(0.012, 1e6), NoiseEstimate(0.012, 2.0)
    assert noise.smallest_tellable(sharp, 3) == pytest.approx(
        (1.95996 + 0.84162) * 0.012 * math.sqrt(2 / 3), rel=1e-4
    )
    assert (
        noise.smallest_tellable(sharp, 11)
        < noise.smallest_tellable(sharp, 3)
        < noise.smallest_tellable(vague, 3)
    )
    with pytest.raises(ValueError, match="pairs"):
        noise.smallest_tellable(sharp, 0)


def test_search_margin_is_never_below_one_per_cent() -> None:
    """Quiet machines need 1 %, noisy ones two standard deviations of a difference."""
    assert noise.search_margin(NoiseEstimate(0.001, 5.0)) == math.log(1.01)
    assert noise.search_margin(NoiseEstimate(0.012, 5.0)) == pytest.approx(0.03394, abs=1e-4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan])
def test_impossible_step_times_are_refused(bad: float) -> None:
    """A step time that is not a positive number is an error."""
    with pytest.raises(ValueError, match="step times"):
        noise.within_run([1.0, bad, 1.0])
