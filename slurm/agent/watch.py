"""The watchdog: when a trial has to be ended, and why. Decides only; acting is slurm.agent.lead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from slurm.agent.plan import LaunchPlan

DEATH_GRACE_S = 5.0
"""Seconds that the other ranks get to notice a dead one and to report."""

STOP_GRACE_S = 20.0
"""Seconds from the stop signal to the end of the launcher; the same for the other nodes' launchers when one
has ended without an error and without the end records of its ranks."""

_NS = 1e9


class WatchedRank(Protocol):
    """What the watchdog knows of a rank, wherever it runs; times in nanoseconds of this node's clock."""

    @property
    def updates(self) -> int:
        """Completed updates."""

    @property
    def end(self) -> bool:
        """Whether its end record came."""

    @property
    def died(self) -> bool:
        """Whether its process is gone without an end record."""

    @property
    def last_update_ns(self) -> int | None:
        """Arrival of its last update."""


class Watchdog:
    """Deadlines of a trial over all its ranks; every time is in nanoseconds of CLOCK_MONOTONIC.

    `failed_ns` is when the first failure was seen.
    """

    def __init__(self, plan: LaunchPlan, ranks: Sequence[WatchedRank], started_ns: int) -> None:
        self._plan = plan
        self._ranks = ranks
        self._started_ns = started_ns
        self._resumed_ns = started_ns
        self._death_ns: int | None = None
        self._left_ns: int | None = None
        self.failed_ns: int | None = None
        self.stop_sent_ns: int | None = None

    def verdict(self, now_ns: int) -> str | None:
        """Why the trial must be ended now (a value of `ended` in result.json), None while all is well."""
        reason = self._judge(now_ns)
        if self.failed_ns is None and (reason is not None or self._death_ns is not None):
            self.failed_ns = now_ns
        return reason

    def note_launchers(self, has_failed: bool, has_left: bool, now_ns: int) -> None:
        """How the launchers of several nodes stand now.

        Args:
            has_failed: One has ended with an error.
            has_left: One has ended without an error, although ranks of it have not sent their end records.
            now_ns: The present.
        """
        if has_failed:
            self._death_ns = self._death_ns or now_ns
            self.failed_ns = self.failed_ns or now_ns
        self._left_ns = (self._left_ns or now_ns) if has_left else None

    def resumed(self, now_ns: int, pause_ns: int) -> None:
        """This agent did not run for so long: nobody is held to deadlines that passed meanwhile."""
        self._started_ns += pause_ns
        self._resumed_ns = now_ns
        if self.stop_sent_ns is not None:
            self.stop_sent_ns += pause_ns

    def all_ended(self) -> bool:
        """Whether every rank has sent its end record."""
        return all(rank.end for rank in self._ranks)

    def _judge(self, now_ns: int) -> str | None:
        age_s = (now_ns - self._started_ns) / _NS
        if age_s > self._plan.total_timeout_s:
            return "total_timeout"
        if self._death_ns is None and any(rank.died for rank in self._ranks):
            self._death_ns = now_ns
        if _is_over(self._death_ns, DEATH_GRACE_S, now_ns) or _is_over(self._left_ns, STOP_GRACE_S, now_ns):
            return "exited"
        if age_s > self._plan.start_timeout_s and not all(rank.updates or rank.end for rank in self._ranks):
            return "start_timeout"
        if any(self._is_hung(rank, now_ns) for rank in self._ranks):
            return "update_timeout"
        if _is_over(self.stop_sent_ns, STOP_GRACE_S, now_ns):
            return "update_timeout"
        return None

    def _is_hung(self, rank: WatchedRank, now_ns: int) -> bool:
        if rank.end or rank.died or rank.last_update_ns is None:
            return False
        return (now_ns - max(rank.last_update_ns, self._resumed_ns)) / _NS > self._plan.update_timeout_s


def _is_over(since_ns: int | None, grace_s: float, now_ns: int) -> bool:
    return since_ns is not None and (now_ns - since_ns) / _NS > grace_s
