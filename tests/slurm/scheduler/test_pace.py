from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm.scheduler import pace


@pytest.mark.parametrize(
    ("since_submit_s", "waits", "floor_s", "expected"),
    [
        (0.0, True, 10.0, 10.0),
        (119.0, True, 10.0, 10.0),
        (119.0, False, 10.0, 30.0),
        (121.0, True, 10.0, 30.0),
        (3600.0, True, 10.0, 60.0),
        (3600.0, False, 120.0, 120.0),
        (0.0, True, 45.0, 45.0),
    ],
)
def test_the_pace_slows_down_and_keeps_the_sites_floor(
    since_submit_s: float, waits: bool, floor_s: float, expected: float
) -> None:
    """Ten seconds while a fresh job waits, then thirty, then a minute; never below the site's minimum."""
    assert pace.interval_s(since_submit_s, waits_for_start=waits, floor_s=floor_s) == expected


@given(st.floats(1, 120), st.integers(0, 200))
def test_failures_back_off_within_bounds(interval: float, failures: int) -> None:
    """Each failure doubles the pause up to 16-fold, with a tenth of jitter."""
    ideal = interval * min(2.0 ** min(failures, 10), 16.0)
    assert 0.9 * ideal <= pace.backed_off_s(interval, failures) <= 1.1 * ideal
