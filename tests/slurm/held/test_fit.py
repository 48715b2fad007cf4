"""Whether a trial is started in what is left of an allocation."""

from __future__ import annotations

import pytest

from slurm.held.holder.fit import cut_lead_s, fits, needs_s


@pytest.mark.parametrize(
    ("limit_s", "longest_s", "expected"),
    [
        pytest.param(600.0, None, 600.0, id="nothing seen: the worst case"),
        pytest.param(600.0, 20.0, 90.0, id="three times the longest and a margin"),
        pytest.param(60.0, 500.0, 60.0, id="never more than its limit"),
    ],
)
def test_need(limit_s: float, longest_s: float | None, expected: float) -> None:
    """What is set aside for a trial is bounded by what others took."""
    assert needs_s(limit_s, longest_s) == expected


def test_trial_that_may_not_finish_is_not_started() -> None:
    """The time to end a trial at the allocation's end does not count as time for it."""
    assert fits(600.0, 631.0, 3600.0)
    assert not fits(600.0, 629.0, 3600.0)


def test_fresh_allocation_takes_any_trial() -> None:
    """One that no allocation is long enough for is started all the same, not moved on for ever."""
    assert fits(7200.0, 3590.0, 3600.0)
    assert not fits(7200.0, 1800.0, 3600.0)


def test_lead_leaves_most_of_a_short_allocation() -> None:
    """An allocation of one minute is not over before it begins."""
    assert cut_lead_s(60.0) == 15.0
    assert cut_lead_s(86_400.0) == 30.0
