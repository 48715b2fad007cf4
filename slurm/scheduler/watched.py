"""What is remembered of one job, and the rule by which it counts as gone."""

from __future__ import annotations

import dataclasses

from engine.schema.job import SchedulerFacts
from slurm.scheduler.records import Presence, Reading, Sighting
from slurm.scheduler.states import parse_state

MISSES = 2
"""So many rounds in a row must have answered without the job."""
GRACE_S = 60.0
"""So long ago it must have been seen or submitted."""
UNSURE_GRACE_S = 300.0
"""The same while scontrol or accounting, which might know more, does not answer."""
_HISTORY_S = 30 * 86400.0
_MARGIN_S = 86400.0


@dataclasses.dataclass(slots=True)
class WatchedJob:
    """One job.

    Attributes:
        job_id: Slurm's id.
        name: The job's name, where known: an answer about another name is about another job with a reused id.
        since: When it was submitted, or else when we began to watch it, unix seconds.
        submitted_at: When it was submitted, where known.
        settled: Nothing about it will change, no question is needed any more.
        looked_up_at: When it was last looked up one by one.
    """

    job_id: str
    name: str | None
    since: float
    submitted_at: float | None = None
    facts: SchedulerFacts | None = None
    settled: bool = False
    looked_up_at: float = 0.0
    next_extra_at: float = 0.0
    extra_gap_s: float = 0.0
    _last_seen: float | None = None
    _start_estimate: float | None = None
    _was_suspended: bool = False
    _misses: int = 0
    _presence: Presence = "unknown"

    @property
    def waits_for_start(self) -> bool:
        """Whether it has not been seen running."""
        return self.facts is None or parse_state(self.facts.state).phase == "waiting"

    @property
    def is_absent(self) -> bool:
        """Whether it counts as gone."""
        return self._presence == "absent"

    @property
    def history_since(self) -> float:
        """From when on accounting must be searched, unix seconds."""
        if self.facts is not None and self.facts.submitted_at is not None:
            return self.facts.submitted_at - _MARGIN_S
        if self.submitted_at is not None:
            return self.submitted_at - _MARGIN_S
        return self.since - _HISTORY_S

    def is_meant(self, sighting: Sighting) -> bool:
        """Whether an answer with our id is about our job."""
        return self.name is None or sighting.facts.name in (None, self.name)

    def see(self, sighting: Sighting, now: float) -> None:
        """Take in an answer about the job."""
        facts = sighting.facts
        state = parse_state(facts.state)
        self._was_suspended = self._was_suspended or sighting.was_suspended
        self.facts = _completed_by(facts, self.facts) if state.is_final else facts
        self._start_estimate = sighting.start_estimate
        self._last_seen = now
        self._misses = 0
        self._presence = "present"
        # The controller may yet requeue a job of a failed node; accounting speaks of what it forgot.
        self.settled = state.is_final and (not state.may_requeue or facts.source == "sacct")

    def settle_if_ended(self) -> None:
        """Take in that a job that had ended is forgotten: it was not requeued."""
        self.settled = self.facts is not None and parse_state(self.facts.state).is_final

    def miss(self, now: float, *, sure: bool) -> None:
        """Take in a round that was answered and did not know the job; `sure` = by every program."""
        self._misses += 1
        grace = GRACE_S if sure else UNSURE_GRACE_S
        reference = self.since if self._last_seen is None else max(self._last_seen, self.since)
        if self._misses >= MISSES and now - reference >= grace:
            self._presence = "absent"
        else:
            self._presence = "unknown"

    def reading(self, now: float, problem: str | None) -> Reading:
        """What is known now."""
        return Reading(
            facts=self.facts,
            presence=self._presence,
            age_s=None if self._last_seen is None else max(0.0, now - self._last_seen),
            problem=problem,
            start_estimate=self._start_estimate,
            was_suspended=self._was_suspended,
        )


def _completed_by(new: SchedulerFacts, old: SchedulerFacts | None) -> SchedulerFacts:
    """The last word on a job, with what only earlier answers said (records of accounting can be sparse)."""
    if old is None:
        return new
    missing = {
        key: value
        for key in ("reason", "nodes", "name", "submitted_at", "started_at", "time_limit_s")
        if not getattr(new, key) and (value := getattr(old, key))
    }
    if parse_state(old.state).phase == "waiting":
        missing.pop("reason", None)
    return new.model_copy(update={**missing, "restarts": max(new.restarts, old.restarts)})
