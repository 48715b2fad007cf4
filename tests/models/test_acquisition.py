"""Expected improvement is what sampling says it is, and risk and price act on it as they should."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from engine.models import acquisition
from engine.models.speed import SpeedPosterior, SpeedPrior
from engine.models.student_t import StudentT


@pytest.mark.parametrize(("mean", "scale", "dof"), [(0.1, 0.05, 6.0), (0.3, 0.05, 12.0), (-0.1, 0.1, 40.0)])
def test_expected_improvement_matches_monte_carlo(mean: float, scale: float, dof: float) -> None:
    """The closed form lies within four standard errors of an average over draws."""
    draws = mean + scale * np.random.default_rng(1).standard_t(dof, 400_000)
    gains = np.maximum(draws - 0.2, 0.0)
    value = acquisition.expected_improvement(StudentT(np.array([mean]), np.array([scale]), dof), 0.2)[0]
    assert value == pytest.approx(gains.mean(), abs=4.0 * gains.std() / math.sqrt(len(gains)))


@settings(max_examples=50, deadline=None)
@given(gap=st.floats(-1.0, 1.0), scale=st.floats(1e-4, 1.0), dof=st.floats(2.0, 100.0))
def test_expected_improvement_bounds_and_monotonicity(gap: float, scale: float, dof: float) -> None:
    """It is at least the certain gain, and grows with the mean and with the spread."""
    belief = StudentT(np.array([gap, gap + 0.01, gap]), np.array([scale, scale, 1.5 * scale]), dof)
    base, better, wider = acquisition.expected_improvement(belief, 0.0)
    tolerance = 1e-12
    assert base >= max(gap, 0.0) - tolerance
    assert better >= base - tolerance
    assert wider >= base - tolerance


def test_a_certain_candidate_improves_by_its_gap() -> None:
    """Without spread the expectation is the positive part of the gap."""
    belief = StudentT(np.array([0.3, 0.1]), np.zeros(2), 6.0)
    np.testing.assert_allclose(acquisition.expected_improvement(belief, 0.2), [0.1, 0.0])
    assert acquisition.log_expected_improvement(belief, 0.2)[1] == -math.inf


@pytest.mark.parametrize(("z", "dof"), [(-2.0, 6.0), (-40.0, 60.0), (-1e3, 200.0), (-1e8, 100.0)])
def test_log_form_survives_underflow(z: float, dof: float) -> None:
    """Far below the incumbent the log form equals log density plus the integral of the density's decay."""
    belief = StudentT(np.array([0.01 * z]), np.array([0.01]), dof)
    power = -0.5 * (dof + 1.0)
    curvature = z * z / (dof + z * z)

    def decay(u: float) -> float:
        return float(u * (1.0 + curvature * (2.0 * u + u * u)) ** power)

    tail, _ = integrate.quad(decay, 0.0, np.inf, epsabs=0.0, epsrel=1e-10)
    expected = float(stats.t.logpdf(z, dof)) + 2.0 * math.log(-z) + math.log(tail) + math.log(0.01)
    assert acquisition.log_expected_improvement(belief, 0.0)[0] == pytest.approx(expected, rel=1e-6)


def test_score_weighs_risk_and_price() -> None:
    """The score is improvement times both chances over cost, and nothing below the floor is chosen."""
    ei, fits = np.array([0.02, 0.05, 0.01]), np.array([0.9, 0.4, 0.6])
    scores = acquisition.score(ei, np.array([1.0, 1.0, 0.5]), fits, np.array([2.0, 0.1, 1.0]), floor=0.5)
    np.testing.assert_allclose(scores, [0.02 * 0.9 / 2.0, 0.0, 0.01 * 0.5 * 0.6])


def test_the_floor_stops_cheap_failures_from_paying() -> None:
    """A config that will likely run out of memory would win per GPU-hour; the floor excludes it."""
    fits = np.array([0.95, 0.2])
    cost = acquisition.expected_cost(fits, 1.0, success=1.0, out_of_memory=0.05, conflict=0.03)
    log_ei = np.log(np.array([0.02, 0.05]))
    assert acquisition.choose(acquisition.log_score(log_ei, 1.0, fits, cost, floor=0.0)) == 1
    assert acquisition.choose(acquisition.log_score(log_ei, 1.0, fits, cost, floor=0.5)) == 0
    assert acquisition.choose(acquisition.log_score(log_ei, 1.0, fits, cost, floor=0.99)) is None


def test_expected_cost_is_the_mean_over_outcomes() -> None:
    """Success, out of memory and conflict are paid by their chances, the queue always."""
    cost = acquisition.expected_cost(np.array([0.8]), np.array([0.9]), 10.0, 2.0, 1.0, wait=0.5)
    assert cost[0] == pytest.approx(0.5 + 0.9 * (0.8 * 10.0 + 0.2 * 2.0) + 0.1 * 1.0)


def test_incumbent_is_not_the_lucky_measurement() -> None:
    """Thirty equal arms: the incumbent's value stays near zero where the best measurement is far above."""
    rng = np.random.default_rng(8)
    y = rng.normal(0.0, 0.012, 30)
    prior = SpeedPrior.from_scales(np.zeros(31), np.append(0.05, np.full(30, 0.02)), 0.012, 10.0)
    x = np.hstack([np.ones((30, 1)), np.eye(30)])
    mean = SpeedPosterior.fit(prior, x, y).predict(x).mean
    best = acquisition.incumbent(mean, np.ones(30, dtype=bool))
    assert best is not None
    assert best.value < float(y.max())
    assert acquisition.incumbent(mean, np.zeros(30, dtype=bool)) is None
    second = acquisition.incumbent(mean, np.arange(30) != best.index)
    assert second is not None
    assert second.value <= best.value


def test_thompson_picks_each_arm_as_often_as_it_is_best() -> None:
    """With two arms, the share of draws for one equals the posterior probability that it is better."""
    prior = SpeedPrior.from_scales(np.array([0.05, 0.0]), np.array([0.08, 0.08]), 0.02, 8.0)
    posterior = SpeedPosterior.fit(prior, np.zeros((0, 2)), np.zeros(0))
    difference = posterior.predict(np.array([[1.0, -1.0]]))
    rng = np.random.default_rng(4)
    arms = np.eye(2)
    picks = [acquisition.thompson_draw(posterior, arms, np.ones(2, dtype=bool), rng) for _ in range(5000)]
    assert float(np.mean(np.array(picks) == 0)) == pytest.approx(
        difference.probability_above(0.0)[0], abs=0.025
    )
    assert acquisition.thompson_draw(posterior, arms, np.array([False, True]), rng) == 1
    assert acquisition.thompson_draw(posterior, arms, np.zeros(2, dtype=bool), rng) is None


def test_a_belief_without_a_mean_is_refused() -> None:
    """One degree of freedom has no expectation to improve on."""
    with pytest.raises(ValueError, match="degree of freedom"):
        acquisition.expected_improvement(StudentT(np.zeros(1), np.ones(1), 1.0), 0.0)
