"""A claim is verified when it is true and big enough, and luck alone does not verify one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from engine.models.noise import NoiseEstimate
from engine.models.paired import PairedEstimate, compare, holm, minimum_detectable_effect, verify


def estimate(log_ratios: object, noise: NoiseEstimate | None = None) -> PairedEstimate:
    """The estimate of pairs that are known to suffice."""
    result = compare(np.asarray(log_ratios, dtype=np.float64), noise)
    assert result is not None
    return result


@settings(max_examples=30, deadline=None)
@given(
    ratios=st.lists(st.floats(-0.5, 0.5), min_size=3, max_size=12).filter(
        lambda values: np.std(values) > 1e-6
    )
)
def test_estimate_equals_the_one_sample_t_test(ratios: list[float]) -> None:
    """Interval and p-value equal those of scipy's t-test on the log ratios."""
    found = estimate(ratios)
    reference = stats.ttest_1samp(ratios, 0.01, alternative="greater")
    interval = stats.ttest_1samp(ratios, 0.0).confidence_interval(0.95)
    assert found.interval(0.95) == pytest.approx(
        (float(interval.low), float(interval.high)), rel=1e-7, abs=1e-9
    )
    assert found.p_value_above(0.01) == pytest.approx(float(reference.pvalue), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("pairs", [3, 5])
@pytest.mark.parametrize("pooled", [False, True])
def test_intervals_cover_at_their_level(pairs: int, pooled: bool) -> None:
    """Over simulated verifications the 95 % interval holds the true gain in 95 % of them."""
    rng = np.random.default_rng(pairs)
    sigma, truth, hits = 0.012, 0.05, []
    for _ in range(4000):
        noise = NoiseEstimate(sigma * math.sqrt(rng.chisquare(4) / 4), 4.0) if pooled else None
        lower, upper = estimate(rng.normal(truth, sigma * math.sqrt(2.0), pairs), noise).interval(0.95)
        hits.append(lower <= truth <= upper)
    assert float(np.mean(hits)) == pytest.approx(0.95, abs=0.012)


def test_pooling_narrows_the_interval_of_few_pairs() -> None:
    """Noise known from diagnosis gives degrees of freedom that three pairs lack."""
    ratios = [0.04, 0.06, 0.05]
    alone, pooled = estimate(ratios), estimate(ratios, NoiseEstimate(0.007, 8.0))
    assert pooled.dof == 10.0
    assert pooled.interval(0.99)[0] > alone.interval(0.99)[0]


def test_fewer_than_two_pairs_is_no_estimate() -> None:
    """One pair has no spread, so it gives no estimate rather than a wrong one."""
    assert compare([0.1]) is None
    assert compare([]) is None


@settings(max_examples=50, deadline=None)
@given(shares=st.lists(st.floats(0.0, 2.0), min_size=1, max_size=4), alpha=st.floats(0.001, 0.2))
def test_holm_rejects_what_the_step_down_procedure_rejects(shares: list[float], alpha: float) -> None:
    """Adjusted p-values below alpha are exactly those that Holm's sequential tests reject."""
    p_values = [share * alpha for share in shares]
    rejected = np.zeros(len(p_values), dtype=bool)
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        if p_values[index] * (len(p_values) - rank) >= alpha:
            break
        rejected[index] = True
    np.testing.assert_array_equal(holm(p_values) < alpha, rejected)


def test_one_finalist_is_verified_when_its_interval_clears_the_margin() -> None:
    """For a single finalist the verdict and the 99 % interval say the same, at either margin."""
    rng = np.random.default_rng(0)
    verdicts = []
    for _ in range(300):
        found = estimate(rng.normal(0.05, 0.015, 5))
        for tellable in (0.0, 0.02):
            (verdict,) = verify([found], tellable)
            assert verdict.verified == (verdict.lower > verdict.margin)
            assert verdict.margin == max(math.log(1.01), tellable)
            verdicts.append(verdict.verified)
    assert 0.1 < float(np.mean(verdicts)) < 0.9


def test_thirty_equal_arms_yield_no_improvement() -> None:
    """The best of 30 equal arms looks fast in the search; re-run in pairs, hardly ever is one verified."""
    rng = np.random.default_rng(30)
    sigma, studies, phantom, false_claims = 0.012, 1000, [], 0
    for _ in range(studies):
        search = rng.normal(0.0, sigma, 30)
        phantom.append(float(search.max()))
        finalists = [estimate(rng.normal(0.0, sigma * math.sqrt(2.0), 5)) for _ in range(3)]
        false_claims += any(verdict.verified for verdict in verify(finalists, tellable=0.0))
    assert float(np.mean(phantom)) > 0.02
    assert false_claims <= 0.005 * studies


def test_a_real_gain_is_verified() -> None:
    """A 10 % gain at 1.2 % noise passes with five pairs, nearly always, also among three finalists."""
    rng = np.random.default_rng(31)
    passed = 0
    for _ in range(200):
        gains = (0.0, 0.02, 0.1)
        finalists = [estimate(rng.normal(gain, 0.012 * math.sqrt(2.0), 5)) for gain in gains]
        passed += verify(finalists, tellable=0.021)[2].verified
    assert passed >= 180


def test_identical_ratios_have_a_certain_verdict() -> None:
    """Pairs without any spread are above the margin or they are not; nothing divides by zero."""
    above, below = verify([estimate([0.05, 0.05, 0.05]), estimate([0.0, 0.0, 0.0])], tellable=0.0)
    assert above.verified
    assert not below.verified


def test_minimum_detectable_effect_gives_its_power() -> None:
    """A z-test detects an effect of that size in 80 % of simulated verifications; known values are met."""
    assert minimum_detectable_effect(0.012, 3) == pytest.approx(0.0274, abs=2e-4)
    sigma, pairs = 0.012, 5
    effect = minimum_detectable_effect(sigma, pairs)
    means = np.random.default_rng(2).normal(effect, sigma * math.sqrt(2.0 / pairs), 20_000)
    assert float(np.mean(means > 1.96 * sigma * math.sqrt(2.0 / pairs))) == pytest.approx(0.8, abs=0.015)


def test_the_rules_of_a_verification_are_kept() -> None:
    """More than three finalists, or a margin that is no number, is refused."""
    found = estimate([0.1, 0.11])
    with pytest.raises(ValueError, match="at most 3"):
        verify([found] * 4, 0.0)
    with pytest.raises(ValueError, match="tellable"):
        verify([found], math.nan)
