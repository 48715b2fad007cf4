"""The speed model equals textbook linear algebra, whichever way its posterior was reached."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from engine.models.arrays import FloatArray
from engine.models.speed import SpeedPosterior, SpeedPrior

seeds = st.integers(0, 2**32 - 1)


def study(seed: int, size: int, dimension: int) -> tuple[SpeedPrior, FloatArray, FloatArray, FloatArray]:
    """A prior and observations with unequal precision."""
    rng = np.random.default_rng(seed)
    prior = SpeedPrior(
        rng.normal(0.0, 0.1, dimension),
        rng.uniform(0.05, 2.0, dimension),
        rng.uniform(1.0, 5.0),
        rng.uniform(1e-3, 0.1),
    )
    x = rng.integers(0, 2, size=(size, dimension)).astype(np.float64)
    return prior, x, rng.normal(0.2, 0.3, size), rng.uniform(0.25, 4.0, size)


def assert_same(left: SpeedPosterior, right: SpeedPosterior) -> None:
    """Two posteriors agree in everything that predictions and evidence are made of."""
    assert (left.n, left.a) == (right.n, right.a)
    np.testing.assert_allclose(left.factor, right.factor, rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(left.mean, right.mean, rtol=1e-6, atol=1e-8)
    assert left.b == pytest.approx(right.b, rel=1e-6, abs=1e-10)
    assert left.log_evidence() == pytest.approx(right.log_evidence(), rel=1e-6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=st.integers(0, 12), dimension=st.integers(1, 8))
def test_fit_matches_the_normal_equations(seed: int, size: int, dimension: int) -> None:
    """Mean and sum of squares equal those of generalised least squares with the prior as extra rows."""
    prior, x, y, v = study(seed, size, dimension)
    posterior = SpeedPosterior.fit(prior, x, y, v)
    rows = np.vstack([x / np.sqrt(v)[:, None], np.diag(np.sqrt(prior.precision))])
    right = np.concatenate([y / np.sqrt(v), np.sqrt(prior.precision) * prior.mean])
    mean = np.linalg.lstsq(rows, right, rcond=None)[0]
    np.testing.assert_allclose(posterior.mean, mean, rtol=1e-6, atol=1e-8)
    assert posterior.b == pytest.approx(prior.b0 + 0.5 * float(np.sum((right - rows @ mean) ** 2)), rel=1e-7)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=st.integers(1, 12), dimension=st.integers(1, 8))
def test_one_by_one_in_any_order_equals_at_once(seed: int, size: int, dimension: int) -> None:
    """Rank-1 additions in a random order reach the posterior of the full fit."""
    prior, x, y, v = study(seed, size, dimension)
    posterior = SpeedPosterior.fit(prior, np.zeros((0, dimension)), np.zeros(0))
    for i in np.random.default_rng(seed).permutation(size):
        posterior = posterior.add(x[i], float(y[i]), float(v[i]))
    assert_same(posterior, SpeedPosterior.fit(prior, x, y, v))


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=st.integers(2, 12), dimension=st.integers(1, 8))
def test_removal_equals_never_having_seen(seed: int, size: int, dimension: int) -> None:
    """Removing an observation gives the posterior without it; add then remove is the identity."""
    prior, x, y, v = study(seed, size, dimension)
    full = SpeedPosterior.fit(prior, x, y, v)
    assert_same(full.remove(x[0], float(y[0]), float(v[0])), SpeedPosterior.fit(prior, x[1:], y[1:], v[1:]))
    assert_same(full.add(x[0], 0.7, 2.0).remove(x[0], 0.7, 2.0), full)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=st.integers(0, 10), dimension=st.integers(1, 6))
def test_new_feature_equals_refit_with_a_zero_column(seed: int, size: int, dimension: int) -> None:
    """Bordering for a feature that was off so far equals a fit with a column of zeros."""
    prior, x, y, v = study(seed, size, dimension)
    extended = SpeedPosterior.fit(prior, x, y, v).extend(precision=0.4, mean=0.15)
    refit = SpeedPosterior.fit(prior.extended(0.4, 0.15), np.hstack([x, np.zeros((size, 1))]), y, v)
    assert_same(extended, refit)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, size=st.integers(0, 10), dimension=st.integers(1, 6))
def test_data_never_make_a_prediction_less_certain(seed: int, size: int, dimension: int) -> None:
    """At fixed noise the variance of every prediction falls or stays with one more observation."""
    prior, x, y, v = study(seed, size, dimension)
    before = SpeedPosterior.fit(prior, x, y, v)
    rng = np.random.default_rng(seed + 1)
    probes = rng.normal(size=(20, dimension))
    after = before.add(rng.normal(size=dimension), 0.1, 0.5)
    assert np.all(after.leverage(probes) <= before.leverage(probes) * (1.0 + 1e-10))


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(1, 10), dimension=st.integers(1, 6))
def test_evidence_is_the_product_of_one_step_predictions(seed: int, size: int, dimension: int) -> None:
    """Log evidence equals the summed log densities of each observation given the ones before it."""
    prior, x, y, v = study(seed, size, dimension)
    posterior = SpeedPosterior.fit(prior, np.zeros((0, dimension)), np.zeros(0))
    total = 0.0
    for row, response, variance in zip(x, y, v, strict=True):
        belief = posterior.predict_noisy(row[None, :], float(variance))
        total += float(stats.t.logpdf(response, belief.dof, belief.mean[0], belief.scale[0]))
        posterior = posterior.add(row, float(response), float(variance))
    assert SpeedPosterior.fit(prior, x, y, v).log_evidence() == pytest.approx(total, rel=1e-7, abs=1e-7)


@settings(max_examples=30, deadline=None)
@given(seed=seeds, size=st.integers(0, 10), dimension=st.integers(1, 6))
def test_a_fantasy_changes_certainty_only(seed: int, size: int, dimension: int) -> None:
    """A pending trial leaves mean, noise and dof alone and shrinks the spread like a real one."""
    prior, x, y, v = study(seed, size, dimension)
    posterior = SpeedPosterior.fit(prior, x, y, v)
    pending = np.random.default_rng(seed + 1).normal(size=dimension)
    fantasy = posterior.fantasise(pending, 0.5)
    np.testing.assert_allclose(fantasy.mean, posterior.mean, rtol=1e-6, atol=1e-9)
    assert fantasy.b == pytest.approx(posterior.b, rel=1e-6)
    assert fantasy.a == posterior.a
    np.testing.assert_allclose(fantasy.factor, posterior.add(pending, 3.0, 0.5).factor)


def test_evidence_equals_numerical_integration() -> None:
    """With one coefficient, evidence equals the integral of likelihood times prior over effect and noise."""
    prior = SpeedPrior(np.array([0.1]), np.array([0.5]), 3.0, 0.3)
    x, y = np.array([[1.0], [2.0]]), np.array([0.3, 0.1])

    def integrand(w: float, precision: float) -> float:
        sigma = 1.0 / math.sqrt(precision)
        likelihood = float(np.prod(stats.norm.pdf(y, x[:, 0] * w, sigma)))
        effect = float(stats.norm.pdf(w, 0.1, sigma / math.sqrt(0.5)))
        return likelihood * effect * float(stats.gamma.pdf(precision, 3.0, scale=1.0 / 0.3))

    value, _ = integrate.dblquad(integrand, 1e-6, 80.0, -3.0, 3.0, epsabs=1e-6, epsrel=1e-6)
    assert SpeedPosterior.fit(prior, x, y).log_evidence() == pytest.approx(math.log(value), abs=1e-3)


def test_draws_have_the_moments_of_the_marginals() -> None:
    """Joint draws reproduce mean and variance of the Student-t marginals."""
    prior, x, y, v = study(7, 10, 4)
    posterior = SpeedPosterior.fit(prior, x, y, v)
    rng = np.random.default_rng(3)
    draws = np.array([posterior.sample(rng) for _ in range(20_000)])
    effects = posterior.effects()
    deviation = effects.scale * math.sqrt(effects.dof / (effects.dof - 2.0))
    np.testing.assert_allclose((draws.mean(axis=0) - effects.mean) / deviation, 0.0, atol=0.04)
    np.testing.assert_allclose(draws.std(axis=0) / deviation, 1.0, atol=0.04)


def test_intervals_cover_the_truth_at_their_level() -> None:
    """When effects and noise come from the prior, 90 % intervals cover 90 % of the true effects."""
    rng = np.random.default_rng(11)
    prior = SpeedPrior.from_scales(np.zeros(5), np.full(5, 0.08), 0.02, 6.0)
    hits = []
    for _ in range(400):
        sigma = math.sqrt(1.0 / rng.gamma(prior.a0, 1.0 / prior.b0))
        effects = rng.normal(0.0, sigma / np.sqrt(prior.precision))
        x = rng.integers(0, 2, size=(6, 5)).astype(np.float64)
        lower, upper = (
            SpeedPosterior.fit(prior, x, x @ effects + rng.normal(0.0, sigma, 6)).effects().interval(0.9)
        )
        hits.append((lower <= effects) & (effects <= upper))
    assert float(np.mean(hits)) == pytest.approx(0.9, abs=0.03)


def test_a_noisier_run_moves_the_model_less() -> None:
    """An observation with four times the variance weighs as much as a quarter of one."""
    prior = SpeedPrior.from_scales(np.zeros(1), np.ones(1), 0.02, 6.0)
    quarter = SpeedPosterior.fit(prior, np.ones((1, 1)), np.array([0.2]), np.array([4.0]))
    one = SpeedPosterior.fit(prior, np.ones((1, 1)), np.array([0.2]))
    assert quarter.factor[0, 0] ** 2 - prior.precision[0] == pytest.approx(0.25)
    assert one.factor[0, 0] ** 2 - prior.precision[0] == pytest.approx(1.0)


def test_history_multiplies_in_as_a_second_normal() -> None:
    """Prior times history equals the prior after pseudo-observations of that precision."""
    prior = SpeedPrior(np.array([0.0, 0.1]), np.array([1.0, 2.0]), 3.0, 0.01)
    informed = prior.informed_by(np.array([0.3, 0.9]), np.array([4.0, 0.0]))
    rows = np.array([[2.0, 0.0]])
    np.testing.assert_allclose(informed.mean, SpeedPosterior.fit(prior, rows, np.array([0.6])).mean)
    np.testing.assert_allclose(informed.precision, [5.0, 2.0])


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_nan_or_infinity_enters(bad: float) -> None:
    """Non-finite features, responses and weights are refused by name."""
    prior = SpeedPrior.from_scales(np.zeros(2), np.ones(2), 0.02, 6.0)
    empty = SpeedPosterior.fit(prior, np.zeros((0, 2)), np.zeros(0))
    with pytest.raises(ValueError, match="log speed-ups"):
        SpeedPosterior.fit(prior, np.ones((1, 2)), np.array([bad]))
    with pytest.raises(ValueError, match="features"):
        empty.add(np.array([1.0, bad]), 0.1)
    with pytest.raises(ValueError, match="relative variance"):
        empty.add(np.ones(2), 0.1, bad)
    with pytest.raises(ValueError, match="no observation"):
        empty.remove(np.ones(2), 0.1)
