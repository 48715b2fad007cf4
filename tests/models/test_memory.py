"""The memory model treats an out-of-memory run as the lower bound that it is."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from engine.models.arrays import BoolArray, FloatArray
from engine.models.memory import MemoryPosterior, MemoryPrior
from engine.models.tobit import NotConverged, TobitObjective, inverse_mills, maximise

seeds = st.integers(0, 2**32 - 1)


def trials(
    rng: np.random.Generator, size: int, dimension: int, share: float
) -> tuple[MemoryPrior, FloatArray, FloatArray, BoolArray]:
    """Runs of which about `share` were stopped, each at its own censoring point."""
    effects = rng.normal(0.0, 0.25, dimension)
    x = np.hstack([np.ones((size, 1)), rng.integers(0, 2, size=(size, dimension - 1)).astype(np.float64)])
    z = 3.7 + x @ effects + rng.normal(0.0, 0.05, size)
    censored = rng.random(size) < share
    z = np.where(censored, z - rng.uniform(0.0, 0.2, size), z)
    mean = np.zeros(dimension)
    mean[0] = 3.7
    return MemoryPrior.from_scales(mean, np.full(dimension, 0.3), 0.05, 6.0), x, z, censored


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds, size=st.integers(0, 12), dimension=st.integers(1, 8), share=st.sampled_from([0.0, 0.4, 1.0])
)
def test_gradient_and_curvature_match_finite_differences(
    seed: int, size: int, dimension: int, share: float
) -> None:
    """Analytic derivatives equal central differences, and the curvature is positive definite."""
    rng = np.random.default_rng(seed)
    objective = TobitObjective(*trials(rng, size, dimension, share))
    theta = objective.start() * rng.uniform(0.7, 1.3) + rng.normal(size=dimension + 1)
    theta[-1] = abs(theta[-1]) + 1.0
    gradient, curvature = objective.derivatives(theta)
    step = 1e-5
    shifts = step * np.eye(dimension + 1)
    slopes = [(objective.value(theta + s) - objective.value(theta - s)) / (2 * step) for s in shifts]
    scale = 1.0 + float(np.abs(gradient).max()) + abs(objective.value(theta)) * 1e-6
    np.testing.assert_allclose(gradient, slopes, atol=1e-4 * scale)
    bends = [
        (objective.derivatives(theta - s)[0] - objective.derivatives(theta + s)[0]) / (2 * step)
        for s in shifts
    ]
    np.testing.assert_allclose(curvature, bends, rtol=1e-3, atol=1e-4 * float(np.abs(curvature).max()))
    assert float(np.linalg.eigvalsh(curvature)[0]) > 0.0


@settings(max_examples=30, deadline=None)
@given(
    seed=seeds, size=st.integers(0, 40), dimension=st.integers(1, 20), share=st.sampled_from([0.0, 0.3, 1.0])
)
def test_the_mode_is_a_stationary_point_for_any_data(
    seed: int, size: int, dimension: int, share: float
) -> None:
    """No data, fewer rows than features, all censored: Newton quickly ends with a vanishing gradient."""
    objective = TobitObjective(*trials(np.random.default_rng(seed), size, dimension, share))
    mode = maximise(objective)
    gradient, curvature = objective.derivatives(mode.theta)
    assert float(gradient @ np.linalg.solve(curvature, gradient)) < 1e-9 * max(
        1.0, abs(objective.value(mode.theta))
    )
    assert mode.iterations <= 60


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(1, 20), dimension=st.integers(1, 10))
def test_without_censoring_it_is_ridge_regression(seed: int, size: int, dimension: int) -> None:
    """Coefficients, noise and covariance of uncensored data have the closed form of the conjugate model."""
    prior, x, z, censored = trials(np.random.default_rng(seed), size, dimension, 0.0)
    posterior = MemoryPosterior.fit(prior, x, z, censored)
    precision = x.T @ x + np.diag(prior.precision)
    ridge = np.linalg.solve(precision, x.T @ z + prior.precision * prior.mean)
    squares = float(np.sum((z - x @ ridge) ** 2) + prior.precision @ (ridge - prior.mean) ** 2)
    np.testing.assert_allclose(posterior.coefficients, ridge, rtol=1e-5, atol=1e-6)
    variance = (squares + 2.0 * prior.b0) / (size + 2.0 * prior.a0 - 1.0)
    assert posterior.sigma**2 == pytest.approx(variance, rel=1e-5)
    inverse = np.linalg.inv(precision)
    np.testing.assert_allclose(posterior.covariance, variance * inverse, rtol=1e-3, atol=1e-8)
    mean, deviation = posterior.predict(x)
    np.testing.assert_allclose(mean, x @ ridge, rtol=1e-5)
    np.testing.assert_allclose(deviation**2, variance * (1.0 + np.diag(x @ inverse @ x.T)), rtol=1e-3)


def test_intercept_only_equals_scipys_censored_fit() -> None:
    """With a vanishing prior, location and scale equal the censored maximum likelihood of scipy."""
    rng = np.random.default_rng(5)
    z = rng.normal(4.2, 0.3, 80)
    limits = rng.normal(4.4, 0.2, 80)
    censored = z > limits
    observed = np.minimum(z, limits)
    prior = MemoryPrior(np.array([4.0]), np.array([1e-9]), 0.5 + 1e-9, 1e-9)
    posterior = MemoryPosterior.fit(prior, np.ones((80, 1)), observed, censored)
    data = stats.CensoredData(uncensored=observed[~censored], right=observed[censored])
    location, scale = stats.norm.fit(data)
    assert 0.1 < float(np.mean(censored)) < 0.5
    assert posterior.coefficients[0] == pytest.approx(location, abs=1e-3)
    assert posterior.sigma == pytest.approx(scale, abs=1e-3)


def expectation_maximisation(
    prior: MemoryPrior, x: FloatArray, z: FloatArray, censored: BoolArray, rounds: int
) -> tuple[FloatArray, float]:
    """The same mode by another road: impute first and second moments, then solve the conjugate problem."""
    beta, sigma = prior.mean.copy(), math.sqrt(prior.noise_variance)
    precision = x.T @ x + np.diag(prior.precision)
    for _ in range(rounds):
        centre = x @ beta
        ratio = inverse_mills((z - centre) / sigma)
        first = np.where(censored, centre + sigma * ratio, z)
        second = np.where(censored, centre**2 + sigma**2 + sigma * ratio * (z + centre), z**2)
        beta = np.asarray(np.linalg.solve(precision, x.T @ first + prior.precision * prior.mean), np.float64)
        fitted = x @ beta
        squares = float(np.sum(second - 2.0 * fitted * first + fitted**2))
        pull = float(prior.precision @ (beta - prior.mean) ** 2)
        sigma = math.sqrt((squares + pull + 2.0 * prior.b0) / (len(z) + 2.0 * prior.a0 - 1.0))
    return beta, sigma


@pytest.mark.parametrize("seed", range(3))
def test_newton_and_expectation_maximisation_find_the_same_mode(seed: int) -> None:
    """Newton's optimum is the fixed point of the EM algorithm."""
    prior, x, z, censored = trials(np.random.default_rng(seed), 30, 5, 0.4)
    beta, sigma = expectation_maximisation(prior, x, z, censored, rounds=4000)
    posterior = MemoryPosterior.fit(prior, x, z, censored)
    np.testing.assert_allclose(posterior.coefficients, beta, atol=1e-5)
    assert posterior.sigma == pytest.approx(sigma, rel=1e-4)


def test_a_general_optimiser_finds_nothing_better() -> None:
    """From random starts, a quasi-Newton search on its own formula ends at the same optimum."""
    rng = np.random.default_rng(9)
    prior, x, z, censored = trials(rng, 25, 4, 0.4)

    def negative(parameters: FloatArray) -> float:
        beta, log_sigma = parameters[:-1], float(parameters[-1])
        sigma = math.exp(log_sigma)
        centre = x @ beta
        exact = np.sum(stats.norm.logpdf(z[~censored], centre[~censored], sigma))
        bounds = np.sum(stats.norm.logsf(z[censored], centre[censored], sigma))
        effects = -0.5 * float(prior.precision @ ((beta - prior.mean) / sigma) ** 2)
        noise = -(2.0 * prior.a0 - 1.0) * log_sigma - prior.b0 / sigma**2
        return -float(exact + bounds + effects + noise)

    posterior = MemoryPosterior.fit(prior, x, z, censored)
    ours = np.append(posterior.coefficients, math.log(posterior.sigma))
    for _ in range(3):
        found = optimize.minimize(negative, ours + rng.normal(0.0, 0.3, 5), method="BFGS")
        np.testing.assert_allclose(found.x, ours, atol=1e-3)


def test_without_data_it_is_the_prior() -> None:
    """No trial yet: the predictive is the prior's, and P(fits) is one half at the prior's mean."""
    prior = MemoryPrior.from_scales(np.array([3.0, 0.1]), np.array([0.5, 0.2]), 0.05, 6.0)
    posterior = MemoryPosterior.fit(prior, np.zeros((0, 2)), np.zeros(0), np.zeros(0, dtype=bool))
    np.testing.assert_allclose(posterior.coefficients, prior.mean)
    np.testing.assert_allclose(
        posterior.covariance, np.diag(posterior.sigma**2 / prior.precision), atol=1e-12
    )
    assert posterior.probability_fits(np.array([[1.0, 1.0]]), 3.1)[0] == pytest.approx(0.5)


def test_each_bound_counts_at_its_own_value() -> None:
    """A higher lower bound leaves less hope; the offset shifts need and limit alike."""
    prior = MemoryPrior.from_scales(np.array([0.0]), np.array([0.3]), 0.05, 6.0)
    one, stopped = np.ones((1, 1)), np.array([True])
    low = MemoryPosterior.fit(prior, one, np.array([0.1]), stopped)
    high = MemoryPosterior.fit(prior, one, np.array([0.5]), stopped)
    assert low.coefficients[0] > 0.1
    assert high.probability_fits(one, 0.5)[0] < low.probability_fits(one, 0.5)[0]
    assert low.probability_fits(one, 3.2, 3.0)[0] == pytest.approx(low.probability_fits(one, 0.2)[0])


def test_extreme_inputs_stay_finite() -> None:
    """Bounds absurdly far above or below the prior give a finite posterior, not a NaN."""
    prior = MemoryPrior.from_scales(np.array([0.0, 0.0]), np.array([0.3, 0.3]), 0.05, 6.0)
    x = np.array([[1.0, 0.0], [1.0, 1.0]])
    for bound in (-1e3, 50.0, 1e3):
        posterior = MemoryPosterior.fit(prior, x, np.array([0.0, bound]), np.array([False, True]))
        mean, deviation = posterior.predict(x)
        assert np.all(np.isfinite(mean))
        assert np.all(deviation > 0.0)


def test_inverse_mills_is_stable() -> None:
    """The hazard equals density over survival where both exist, and its asymptotes beyond."""
    r = np.array([-5.0, 0.0, 3.0])
    np.testing.assert_allclose(inverse_mills(r), stats.norm.pdf(r) / stats.norm.sf(r), rtol=1e-12)
    np.testing.assert_allclose(inverse_mills(np.array([1e4, -60.0])), [1e4 + 1e-4, 0.0], atol=1e-8)


def test_shapes_and_values_are_checked() -> None:
    """Mismatched flags and non-finite peaks are refused by name."""
    prior = MemoryPrior.from_scales(np.zeros(1), np.ones(1), 0.05, 6.0)
    with pytest.raises(ValueError, match="censored"):
        MemoryPosterior.fit(prior, np.ones((2, 1)), np.zeros(2), np.array([True]))
    with pytest.raises(ValueError, match="log peak memory"):
        MemoryPosterior.fit(prior, np.ones((1, 1)), np.array([math.nan]), np.array([False]))


def simulated_task(
    rng: np.random.Generator,
) -> tuple[MemoryPrior, FloatArray, FloatArray, BoolArray, FloatArray, BoolArray, float]:
    """Sixteen trials over twelve features, some out of memory, and 200 held-out configurations."""
    effects = np.append(3.7, rng.normal(0.0, 0.25, 12))
    x, held_out = (
        np.hstack([np.ones((size, 1)), (rng.random((size, 12)) < 0.4).astype(np.float64)])
        for size in (16, 200)
    )
    need = held_out @ effects + rng.normal(0.0, 0.03, 200)
    limit = float(np.quantile(need, 0.7))
    z = x @ effects + rng.normal(0.0, 0.03, 16)
    stopped = z > limit
    z = np.where(stopped, np.minimum(z, limit + 0.05 * rng.random(16)), z)
    mean = np.append(3.7, np.zeros(12))
    prior = MemoryPrior.from_scales(mean, np.append(0.5, np.full(12, 0.25)), 0.05, 6.0)
    return prior, x, z, stopped, held_out, need <= limit, limit


def test_lower_bounds_beat_dropped_rows_beat_faked_measurements() -> None:
    """Brier score of "does it fit?": censored < dropped < limit taken as the measurement < base rate."""
    rng = np.random.default_rng(2024)
    scores: dict[str, list[float]] = {"censored": [], "dropped": [], "exact": [], "base rate": []}
    unsafe = dict.fromkeys(scores, 0)
    for _ in range(80):
        prior, x, z, stopped, held_out, fits, limit = simulated_task(rng)
        views = {
            "censored": (x, z, stopped),
            "dropped": (x[~stopped], z[~stopped], stopped[~stopped]),
            "exact": (x, z, np.zeros_like(stopped)),
        }
        for name, view in views.items():
            probability = MemoryPosterior.fit(prior, *view).probability_fits(held_out, limit)
            scores[name].append(float(np.mean((probability - fits) ** 2)))
            unsafe[name] += int(np.count_nonzero((probability >= 0.8) & ~fits))
        scores["base rate"].append(float(np.mean((fits.mean() - fits) ** 2)))
    brier = {name: float(np.mean(values)) for name, values in scores.items()}
    assert brier["censored"] < 0.08
    assert 1.4 * brier["censored"] < brier["dropped"] < brier["exact"] < brier["base rate"]
    assert 2 * unsafe["censored"] < unsafe["dropped"] < unsafe["exact"]


@pytest.mark.parametrize("scale", [1e8, 1e50, 1e150])
def test_inputs_out_of_all_proportion_are_refused(scale: float) -> None:
    """Where double precision cannot hold the curvature there is a typed failure."""
    prior = MemoryPrior.from_scales(np.zeros(1), np.ones(1), 1e-8, 6.0)
    with pytest.raises(NotConverged), np.errstate(all="ignore"):
        MemoryPosterior.fit(prior, [[scale], [scale]], [scale, -scale], [False, True])
