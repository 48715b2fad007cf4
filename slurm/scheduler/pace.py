"""How often the scheduler is asked: often before a start, seldom afterwards, hardly while it fails."""

from __future__ import annotations

import random

FRESH_S = 120.0
"""So long after a submission the next round comes soon, unless everything runs already."""
_FRESH_INTERVAL_S = 10.0
_USUAL_UNTIL_S = 900.0
_USUAL_INTERVAL_S = 30.0
_LATE_INTERVAL_S = 60.0
_MAX_BACK_OFF = 16
_JITTER = 0.1


def interval_s(since_submit_s: float, *, waits_for_start: bool, floor_s: float) -> float:
    """Seconds between two rounds.

    Args:
        since_submit_s: Seconds since the youngest watched job was submitted.
        waits_for_start: Some watched job has not been seen running.
        floor_s: The site's minimum.
    """
    if since_submit_s < FRESH_S and waits_for_start:
        usual = _FRESH_INTERVAL_S
    elif since_submit_s < _USUAL_UNTIL_S:
        usual = _USUAL_INTERVAL_S
    else:
        usual = _LATE_INTERVAL_S
    return max(usual, floor_s)


def backed_off_s(interval: float, failures: int) -> float:
    """The interval after `failures` failed rounds in a row: doubled each time up to 16-fold, with jitter.

    The jitter of a tenth keeps many engines from returning in step to a controller that has just come back.
    """
    if failures <= 0:
        return interval
    factor: float = min(2.0**failures, _MAX_BACK_OFF)
    return interval * factor * random.uniform(1.0 - _JITTER, 1.0 + _JITTER)
