"""How long the agent of a trial has been silent, by our own clock; and when a job's end is final for us."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from engine.schema.job import JobHandle
from slurm.trial_files import pulse


@dataclass
class _Trial:
    beat: bytes
    changed_at: float
    gone_since: float | None = None


class Silence:
    """Watches heartbeats: while they change, a job runs, whatever a scheduler says.

    Args:
        grace_s: Seconds that must pass after the news of a job's end, and since its last sign of life.
        clock: A clock that only goes forward, seconds.
    """

    def __init__(self, grace_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._grace_s = grace_s
        self._clock = clock
        self._trials: dict[str, _Trial] = {}

    def seconds(self, handle: JobHandle) -> float:
        """Seconds since the heartbeat was last seen to change; 0 at the first look."""
        return self._clock() - self._look(handle).changed_at

    def still_there(self, handle: JobHandle) -> None:
        """The scheduler knows the job as waiting or running."""
        self._look(handle).gone_since = None

    def is_final(self, handle: JobHandle) -> bool:
        """Whether a job that is said to have ended has been silent for long enough."""
        trial, now = self._look(handle), self._clock()
        if trial.gone_since is None:
            trial.gone_since = now
        return now - max(trial.gone_since, trial.changed_at) >= self._grace_s

    def forget(self, handle: JobHandle) -> None:
        """The trial is over."""
        self._trials.pop(handle.trial_dir, None)

    def _look(self, handle: JobHandle) -> _Trial:
        beat = pulse(handle)
        trial = self._trials.get(handle.trial_dir)
        if trial is None:
            trial = self._trials[handle.trial_dir] = _Trial(beat, self._clock())
        elif beat != trial.beat:
            trial.beat, trial.changed_at = beat, self._clock()
        return trial
