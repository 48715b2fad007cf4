"""The watchdog: when a trial has to be ended, and why. Decides only; acting is slurm.agent.run."""

from __future__ import annotations

from collections.abc import Sequence

from slurm.agent.plan import LaunchPlan
from slurm.agent.ranks import RankRecord

DEATH_GRACE_S = 5.0
"""Seconds that the other ranks get to notice a dead one and to report."""

STOP_GRACE_S = 20.0
"""Seconds from the stop signal to the end of the launcher."""

_NS = 1e9


class Watchdog:
    """Deadlines of a trial; every time is in nanoseconds of CLOCK_MONOTONIC."""

    def __init__(self, plan: LaunchPlan, ranks: Sequence[RankRecord], started_ns: int) -> None:
        self._plan = plan
        self._ranks = ranks
        self._started_ns = started_ns
        self._death_ns: int | None = None
        self.stop_sent_ns: int | None = None

    def verdict(self, now_ns: int) -> str | None:
        """Why the trial must be ended now (a value of `ended` in result.json), None while all is well."""
        age_s = (now_ns - self._started_ns) / _NS
        if age_s > self._plan.total_timeout_s:
            return "total_timeout"
        if self._death_ns is None and any(rank.died for rank in self._ranks):
            self._death_ns = now_ns
        if self._death_ns is not None and (now_ns - self._death_ns) / _NS > DEATH_GRACE_S:
            return "exited"
        if age_s > self._plan.start_timeout_s and not all(rank.updates or rank.end for rank in self._ranks):
            return "start_timeout"
        if any(self._is_hung(rank, now_ns) for rank in self._ranks):
            return "update_timeout"
        if self.stop_sent_ns is not None and (now_ns - self.stop_sent_ns) / _NS > STOP_GRACE_S:
            return "update_timeout"
        return None

    def all_ended(self) -> bool:
        """Whether every rank has sent its end record."""
        return all(rank.end for rank in self._ranks)

    def _is_hung(self, rank: RankRecord, now_ns: int) -> bool:
        if rank.end or rank.died or rank.last_update_ns is None:
            return False
        return (now_ns - rank.last_update_ns) / _NS > self._plan.update_timeout_s
