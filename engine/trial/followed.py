"""A job that this engine waits for, and what is known of where and how long it ran."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from engine.schema.job import JobHandle, JobState, JobStatus, SchedulerFacts
from engine.trial.json_fields import clean_text, finite

UNRECORDED = "unrecorded"
"""Job id of a handle whose submission the journal does not hold (yet)."""


@dataclass
class FollowedJob:
    """A job between its submission and its outcome.

    Attributes:
        handle: The best one known by now.
        since: When it was first seen in its present state, unix seconds.
        status: The last reading, None before the first.
        running_since: When this engine first saw it running, None = it never did.
    """

    handle: JobHandle
    since: float
    status: JobStatus | None = None
    running_since: float | None = None

    @property
    def state(self) -> JobState:
        """The last state seen."""
        return JobState.PENDING if self.status is None else self.status.state

    @property
    def facts(self) -> SchedulerFacts | None:
        """What the scheduler said last, of the trial's job or of the allocation that holds it."""
        return None if self.status is None else self.status.scheduler

    def note(self, status: JobStatus, now: float) -> None:
        """Take a reading; facts that were known once are kept where the new one has none."""
        if status.state is not self.state:
            self.since = now
        if status.state is JobState.RUNNING and self.running_since is None:
            self.running_since = now
        if status.scheduler is None and self.facts is not None:
            status = status.model_copy(update={"scheduler": self.facts})
        self.status = status

    def own_facts(self, held: frozenset[str]) -> SchedulerFacts | None:
        """The scheduler's facts where they are about a job for this trial alone, not one of `held`."""
        facts = self.facts
        return None if facts is None or facts.job_id in held else facts


@dataclass(frozen=True)
class AgentTrace:
    """What the agents left in the trial folder without a result.

    started_at and last_seen_at are unix seconds on the head's clock; nodes are the names of those that
    started, by node rank.
    """

    started_at: float | None = None
    last_seen_at: float | None = None
    nodes: tuple[str, ...] = ()

    @property
    def ran_s(self) -> float | None:
        """Seconds for which it surely ran; None where it never started."""
        if self.started_at is None:
            return None
        return max(0.0, (self.last_seen_at or self.started_at) - self.started_at)


def read_trace(trial_dir: Path, token: str, nodes: int = 1) -> AgentTrace:
    """The trace of the agents with this token; empty where there is none."""
    heads = [trial_dir / "job.json", *(trial_dir / f"node-{rank}.json" for rank in range(1, nodes))]
    records = [record for record in map(_read, heads) if record.get("token") == token]
    if not records or records[0].get("node_rank"):
        return AgentTrace(nodes=_names(records))
    return AgentTrace(
        started_at=finite(records[0].get("started_at")),
        last_seen_at=finite(_read(trial_dir / "heartbeat").get("at")),
        nodes=_names(records),
    )


def _names(records: list[dict[str, object]]) -> tuple[str, ...]:
    found = (record.get("node") or record.get("host") for record in records)
    return tuple(clean_text(name) for name in found if isinstance(name, str))


def _read(path: Path) -> dict[str, object]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
