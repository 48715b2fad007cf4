"""May a trial be started in what is left of an allocation? The holder and the engine use the same rule."""

from __future__ import annotations

_TIMES_LONGEST = 3.0
_MARGIN_S = 30.0
_FRESH = 0.9
_CUT_LEAD_S = 30.0


def needs_s(time_limit_s: float, longest_s: float | None) -> float:
    """Seconds to set aside for a trial: its limit is a worst case, what others here took bounds it better.

    Args:
        time_limit_s: After so long its agent has ended it.
        longest_s: The longest trial in this allocation so far; None before the first.
    """
    if longest_s is None:
        return time_limit_s
    return min(time_limit_s, _TIMES_LONGEST * longest_s + _MARGIN_S)


def fits(need_s: float, left_s: float, limit_s: float) -> bool:
    """Whether a trial should start here rather than in an allocation of its own.

    One that needs more than any allocation has is started in a fresh one: waiting would not help it.
    """
    return left_s - cut_lead_s(limit_s) >= need_s or left_s >= _FRESH * limit_s


def cut_lead_s(limit_s: float) -> float:
    """Seconds before the allocation's end at which a running trial is ended; seconds."""
    return min(_CUT_LEAD_S, limit_s / 4)
