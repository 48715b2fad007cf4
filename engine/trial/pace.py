"""How often a job is looked at: often while little has passed, seldom where waiting is long anyway."""

from __future__ import annotations

from engine.schema.job import JobState

SHORTEST_S = 0.25
LONGEST_S = 1.0
_PROMPT_S = 20.0
"""Seconds of a running job over which it is looked at as often as possible."""
_JUST_SUBMITTED_S = 2.0


def pause_s(state: JobState, since_s: float) -> float:
    """Seconds until the next look at a job that has been in `state` for `since_s` seconds.

    Of a running job less than 1.3 % of its time is lost at its end, and never more than LONGEST_S.
    """
    if state is JobState.RUNNING:
        return min(LONGEST_S, SHORTEST_S * max(1.0, since_s / _PROMPT_S))
    return SHORTEST_S if since_s < _JUST_SUBMITTED_S else LONGEST_S
