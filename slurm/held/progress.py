"""What has happened in an allocation so far: the holder's events, replayed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from slurm.held.holder.ledger import Entry
from slurm.scheduler.hostlist import expand

TAKEN_AWAY = "told_to_end"
"""Why a holder left, or ended a trial, that was not its own or our wish."""


@dataclass
class TrialProgress:
    """What the holder said about one trial.

    Args:
        started: A step was (or is being) started for it.
        withdrawn: It was cancelled before that.
        declined: Why it was not started in this allocation.
        cut: Why the holder ended it: time_limit, cancelled, told_to_end.
        ended: The event that closed it.
    """

    started: bool = False
    withdrawn: bool = False
    declined: str | None = None
    cut: str | None = None
    ended: Entry | None = None

    @property
    def is_over(self) -> bool:
        """Whether this allocation is done with it."""
        return self.ended is not None or self.withdrawn or self.declined is not None


@dataclass(frozen=True)
class Leaving:
    """The holder goes: why, and when on its clock (unix seconds)."""

    reason: str
    at: float


@dataclass(frozen=True)
class Allocated:
    """The allocation came: when on the holder's clock, until when, what and where; unix seconds."""

    at: float
    end_time: float
    limit_s: float
    job_id: str | None
    nodes: tuple[str, ...]


class Progress:
    """The holder's events so far."""

    def __init__(self) -> None:
        self.allocated: Allocated | None = None
        self.leaving: Leaving | None = None
        self.trials: dict[str, TrialProgress] = {}
        self.longest_s: float | None = None

    def take(self, events: Iterable[Entry]) -> None:
        """Take further events in, in their order."""
        for event in events:
            self._take(event)

    def trial(self, token: str) -> TrialProgress:
        """What is known of a trial; an empty record when nothing is."""
        return self.trials.setdefault(token, TrialProgress())

    def _take(self, event: Entry) -> None:
        kind = event["kind"]
        if kind == "allocated":
            self.allocated = _allocated(event)
        elif kind == "leaving":
            self.leaving = Leaving(str(event.get("reason")), float(event["at"]))
        elif isinstance(event.get("token"), str):
            self._take_of_trial(kind, event, self.trial(event["token"]))

    def _take_of_trial(self, kind: str, event: Entry, trial: TrialProgress) -> None:
        if kind == "started":
            trial.started = True
        elif kind == "withdrawn":
            trial.withdrawn = True
        elif kind == "declined":
            trial.declined = str(event.get("reason"))
        elif kind == "cut":
            trial.cut = str(event.get("why"))
        elif kind == "ended":
            trial.ended = event
            if event.get("cut") is None:
                self.longest_s = max(_number(event.get("wall_s")), self.longest_s or 0.0)


def _allocated(event: Entry) -> Allocated:
    job_id = event.get("job_id")
    return Allocated(
        at=float(event["at"]),
        end_time=_number(event.get("end_time")),
        limit_s=_number(event.get("limit_s")),
        job_id=str(job_id) if job_id else None,
        nodes=tuple(_expanded(str(event.get("nodelist") or ""))),
    )


def _expanded(nodelist: str) -> list[str]:
    try:
        return expand(nodelist)
    except ValueError:
        return [nodelist]


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0
