from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from engine.invariants.trend import mann_kendall_p, theil_sen_drift

TIMES = st.lists(st.floats(0.01, 10.0), min_size=3, max_size=12, unique=True)


@given(TIMES)
def test_p_value_agrees_with_kendalls_tau(times: list[float]) -> None:
    """The exact p-value is that of Kendall's tau against the order of time."""
    reference = stats.kendalltau(range(len(times)), times, method="exact").pvalue
    assert mann_kendall_p(times) == pytest.approx(min(1.0, reference), abs=1e-9)


@given(TIMES)
def test_drift_agrees_with_scipys_theil_slope(times: list[float]) -> None:
    """The drift is the Theil-Sen slope over the whole series, relative to its median."""
    slope = stats.theilslopes(times)[0]
    middle = (
        sorted(times)[len(times) // 2]
        if len(times) % 2
        else sum(sorted(times)[len(times) // 2 - 1 : len(times) // 2 + 1]) / 2
    )
    assert theil_sen_drift(times) == pytest.approx(slope * (len(times) - 1) / middle, rel=1e-9, abs=1e-9)


def test_p_values_of_all_orders_are_uniform_at_most() -> None:
    """Over all orders of five values, a p-value of at most p comes up with a chance of at most p."""
    values = [mann_kendall_p(order) for order in itertools.permutations((1.0, 2.0, 3.0, 4.0, 5.0))]
    for level in (0.02, 0.05, 0.1, 0.5):
        assert sum(value <= level for value in values) / len(values) <= level + 1e-12


@given(TIMES)
def test_reversed_time_reverses_the_drift(times: list[float]) -> None:
    """A series read backwards drifts the other way with the same significance."""
    assert theil_sen_drift(times[::-1]) == pytest.approx(-theil_sen_drift(times), rel=1e-9, abs=1e-12)
    assert mann_kendall_p(times[::-1]) == pytest.approx(mann_kendall_p(times))
