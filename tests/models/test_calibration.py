"""Predictions gain influence when measurements bear them out, and lose it when they do not."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from engine.models.arrays import FloatArray
from engine.models.calibration import Advice, HyperPrior, calibrate, rank_correlation
from engine.models.speed import SpeedPosterior, SpeedPrior

EFFECTS = 12


def base_prior() -> SpeedPrior:
    """Intercept and twelve mechanisms, without advice."""
    return SpeedPrior.from_scales(np.zeros(EFFECTS + 1), np.append(0.05, np.full(EFFECTS, 0.08)), 0.02, 6.0)


def measured(seed: int, trials: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """True effects and noisy trials that switch some of them on."""
    rng = np.random.default_rng(seed)
    truth = rng.normal(0.0, 0.12, EFFECTS)
    x = np.hstack([np.ones((trials, 1)), (rng.random((trials, EFFECTS)) < 0.4).astype(np.float64)])
    return truth, x, x[:, 1:] @ truth + rng.normal(0.0, 0.012, trials)


def advice(gain: FloatArray) -> Advice:
    """Predictions about every mechanism, equally sure of each."""
    return Advice(np.arange(1, EFFECTS + 1), gain, np.full(EFFECTS, 0.05))


def test_without_trials_the_hyper_prior_decides() -> None:
    """Before the first trial trust is the mean of the hyper-prior, and prior means are trust times gain."""
    hyper = HyperPrior()
    weights = np.array([stats.norm.pdf(a, hyper.trust_mean, hyper.trust_sd) for a in hyper.trusts])
    expected = float(weights @ np.array(hyper.trusts) / weights.sum())
    gain = np.linspace(-0.1, 0.2, EFFECTS)
    result = calibrate(base_prior(), advice(gain), np.zeros((0, EFFECTS + 1)), np.zeros(0))
    assert result.trust.mean == pytest.approx(expected)
    np.testing.assert_allclose(result.prior.mean[1:], expected * gain)
    assert (result.trust.rank_correlation, result.trust.measured) == (None, 0)
    assert result.prior.precision[0] == base_prior().precision[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_good_advisor_earns_trust(seed: int) -> None:
    """Predictions near the truth raise trust above its start and rank the measured effects."""
    truth, x, y = measured(seed, 20)
    noise = np.random.default_rng(seed + 100).normal(0.0, 0.03, EFFECTS)
    result = calibrate(base_prior(), advice(truth + noise), x, y)
    assert result.trust.mean > 0.75
    assert result.trust.rank_correlation is not None
    assert result.trust.rank_correlation > 0.6
    assert result.trust.measured >= 6


@pytest.mark.parametrize("seed", range(5))
def test_a_contrary_advisor_has_no_influence(seed: int) -> None:
    """Predictions that rank the measured effects backwards leave the prior as it was without advice."""
    truth, x, y = measured(seed, 20)
    prior = base_prior()
    result = calibrate(prior, advice(-truth), x, y)
    assert result.trust.silenced
    assert result.trust.mean == 0.0
    assert result.prior is prior


def test_trust_decays_before_the_gate_closes() -> None:
    """With too few measured effects to silence it, a contrary advisor loses trust trial by trial."""
    truth, x, y = measured(3, 20)
    only = Advice(np.arange(1, 6), -truth[:5], np.full(5, 0.05))
    trusts = [calibrate(base_prior(), only, x[:n], y[:n]).trust.mean for n in (0, 5, 20)]
    assert trusts[0] > trusts[1] > trusts[2]
    assert trusts[2] < 0.2


def test_good_advice_improves_predictions_and_contrary_advice_does_no_harm() -> None:
    """Squared error of the effects after eight trials: good advice < none, contrary about equal."""
    errors: dict[str, list[float]] = {"none": [], "good": [], "contrary": []}
    for seed in range(30):
        truth, x, y = measured(seed, 8)
        noise = np.random.default_rng(seed + 500).normal(0.0, 0.04, EFFECTS)
        priors = {
            "none": base_prior(),
            "good": calibrate(base_prior(), advice(truth + noise), x, y).prior,
            "contrary": calibrate(base_prior(), advice(-0.5 * truth + noise), x, y).prior,
        }
        for name, prior in priors.items():
            errors[name].append(float(np.mean((SpeedPosterior.fit(prior, x, y).mean[1:] - truth) ** 2)))
    mean = {name: float(np.mean(values)) for name, values in errors.items()}
    assert mean["good"] < 0.6 * mean["none"]
    assert mean["contrary"] < 1.15 * mean["none"]


def test_an_unsure_prediction_stays_wide() -> None:
    """Of two equal predictions the less certain one gets the smaller prior precision."""
    unsure = Advice(np.array([1, 2, 3]), np.array([0.01, 0.01, 0.01]), np.array([0.02, 0.02, 0.2]))
    prior = calibrate(base_prior(), unsure, np.zeros((0, EFFECTS + 1)), np.zeros(0)).prior
    assert prior.precision[3] < 0.1 * prior.precision[1]


def test_mixture_variance_counts_the_doubt_about_trust() -> None:
    """A large prediction has a wider prior than a small one, for trust in it is itself uncertain."""
    result = calibrate(
        base_prior(),
        Advice(np.array([1, 2]), np.array([0.0, 0.5]), np.array([0.05, 0.05])),
        np.zeros((0, EFFECTS + 1)),
        np.zeros(0),
    )
    variance = base_prior().noise_variance / result.prior.precision[1:3]
    assert variance[1] - variance[0] == pytest.approx((result.trust.sd * 0.5) ** 2)


def test_quantiles_become_a_standard_deviation() -> None:
    """The 10 % and 90 % quantiles of a normal give back its standard deviation."""
    low, high = (stats.norm.ppf(share, 0.05, 0.02) for share in (0.1, 0.9))
    elicited = Advice.from_quantiles([0], [float(low)], [0.05], [float(high)])
    assert elicited.sd[0] == pytest.approx(0.02, rel=1e-3)


def test_rank_correlation_matches_scipy() -> None:
    """Spearman's rho equals scipy's, ties included, and has no value for a constant side."""
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 30).astype(np.float64), rng.normal(size=30)
    assert rank_correlation(first, second) == pytest.approx(stats.spearmanr(first, second).statistic)
    assert rank_correlation(np.ones(5), second[:5]) is None


def test_impossible_advice_is_refused() -> None:
    """Unknown columns, repeated columns and zero deviations are errors; no advice changes nothing."""
    x, y = np.zeros((0, EFFECTS + 1)), np.zeros(0)
    with pytest.raises(ValueError, match="advised column 40"):
        calibrate(base_prior(), Advice(np.array([40]), np.array([0.1]), np.array([0.1])), x, y)
    with pytest.raises(ValueError, match="distinct"):
        Advice(np.array([1, 1]), np.zeros(2), np.ones(2))
    with pytest.raises(ValueError, match="advised sd"):
        Advice(np.array([1]), np.zeros(1), np.zeros(1))
    prior = base_prior()
    assert (
        calibrate(prior, Advice(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0)), x, y).prior is prior
    )
