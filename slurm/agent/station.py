"""One node's agent between two decisions: it waits, samples, beats, and notices when it was away."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Protocol

from slurm.agent.durable import touch_json
from slurm.agent.loop import Loop
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan
from slurm.agent.trial import Trial

TICK_S = 0.1
"""Seconds between two looks of the loop when nothing happens."""

PAUSE_S = 5.0
"""A gap between two ticks that is longer than this was no work: the agent was stopped, or the machine was."""

_HEARTBEAT_S = 1.0
_MOST_ELAPSED_S = 1.0


class Channel(Protocol):
    """This node's side of the control channel."""

    def tick(self, elapsed_s: float) -> None:
        """Beat, send what is left, count the silence of the other side."""


class Station:
    """The loop of one agent and its present attempt.

    `watching` is set while the launcher runs; only then gaps count for `longest_gap_s`. `on_pause` hears of
    each long one, in seconds.
    """

    def __init__(self, plan: LaunchPlan, node: NodeIdentity, loop: Loop) -> None:
        self.plan = plan
        self.node = node
        self.loop = loop
        self.attempt = 0
        self.trial = Trial(plan, node, loop)
        self.channel: Channel | None = None
        self.counts: Callable[[], dict[str, int]] = self.own_counts
        self.watching = False
        self.on_pause: Callable[[float], None] | None = None
        self.longest_gap_s = 0.0
        self._last_tick = time.monotonic()
        self._next_heartbeat = 0.0

    def renew(self) -> None:
        """Begin another attempt; the one before has finished."""
        self.attempt += 1
        self.trial = Trial(self.plan, self.node, self.loop)

    def own_counts(self) -> dict[str, int]:
        """Updates of each rank of this node."""
        return {str(rank.rank): rank.updates for rank in self.trial.ranks}

    def pump(self, wait_s: float) -> None:
        """Wait for records and messages at most so long, then do what is due."""
        self.loop.serve(wait_s)
        gap_s = self._gap()
        self.trial.tick()
        if self.channel is not None:
            self.channel.tick(min(gap_s, _MOST_ELAPSED_S))
        self._beat()

    def _gap(self) -> float:
        now = time.monotonic()
        gap_s, self._last_tick = now - self._last_tick, now
        if self.watching:
            self.longest_gap_s = max(self.longest_gap_s, gap_s)
            if gap_s > PAUSE_S and self.on_pause is not None:
                self.on_pause(gap_s)
        return gap_s

    def _beat(self) -> None:
        now = time.monotonic()
        if now < self._next_heartbeat:
            return
        self._next_heartbeat = now + _HEARTBEAT_S
        with contextlib.suppress(OSError):  # a disk that is full may have room again later
            beat = {"at": time.time(), "updates": self.counts()}
            touch_json(self.plan.folder / f"heartbeat{self.node.suffix}", beat)
