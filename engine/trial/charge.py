"""What a trial has cost and how long it waited, by the best clock that is known."""

from __future__ import annotations

from dataclasses import dataclass

from engine.journal.state import TrialState
from engine.schema.evidence import RunEvidence
from engine.schema.job import SchedulerFacts
from engine.trial.followed import UNRECORDED, AgentTrace, FollowedJob

_LONGEST_PROLOGUE_S = 300.0
"""From the start of a job to that of its agent; where the clocks say more, they do not agree."""


@dataclass(frozen=True)
class Stay:
    """Everything that tells how long a trial was on the machines.

    Attributes:
        trial: With the times at which it was proposed and submitted.
        job: As the engine followed it.
        facts: The scheduler's, where the job ran this trial alone.
        evidence: The agent's result; None without one.
        trace: What the agent left behind in any case.
        longest_s: The longest that a trial may run.
        now: Unix seconds.
    """

    trial: TrialState
    job: FollowedJob
    facts: SchedulerFacts | None
    evidence: RunEvidence | None
    trace: AgentTrace
    longest_s: float
    now: float

    @property
    def held_s(self) -> float:
        """Seconds for which the trial held its ranks: the scheduler's, else the agent's, else our own.

        Hours in which no engine was there to look are not charged.
        """
        facts = self.facts
        if facts is not None and facts.started_at is not None and facts.ended_at is not None:
            return max(0.0, facts.ended_at - facts.started_at)
        wall_s = self.evidence.wall_s if self.evidence is not None else None
        if wall_s is not None:
            return wall_s + self._prologue_s(self.evidence.started_at if self.evidence else None)
        if self.trace.ran_s is not None:
            return self.trace.ran_s + self._prologue_s(self.trace.started_at)
        return min(self.longest_s, max(0.0, self.now - self._own_start()))

    @property
    def ran_s(self) -> float | None:
        """Seconds for which the trial itself ran; None where nobody saw."""
        facts = self.facts
        if self.trace.ran_s is not None:
            return self.trace.ran_s
        if facts is not None and facts.started_at is not None and facts.ended_at is not None:
            return max(0.0, facts.ended_at - facts.started_at)
        return None

    @property
    def queue_wait_s(self) -> float | None:
        """Seconds between submission and start; None while either is unknown."""
        facts = self.facts
        if facts is not None and facts.started_at is not None and facts.submitted_at is not None:
            return max(0.0, facts.started_at - facts.submitted_at)
        started = self.evidence.started_at if self.evidence is not None else None
        started = started if started is not None else self.trace.started_at
        if started is None or self.trial.submitted_at is None:
            return None
        return max(0.0, started - self.trial.submitted_at)

    def _prologue_s(self, agent_started_at: float | None) -> float:
        """Seconds that the job had before its agent began."""
        if self.facts is None or self.facts.started_at is None or agent_started_at is None:
            return 0.0
        prologue = agent_started_at - self.facts.started_at
        return prologue if 0.0 <= prologue <= _LONGEST_PROLOGUE_S else 0.0

    def _own_start(self) -> float:
        """When the trial began to cost something by our own clock; now where it never did."""
        if self.job.handle.job_id == UNRECORDED:
            return self.now
        if self.job.running_since is not None or self.job.handle.executor == "slurm":
            return self.now if self.job.running_since is None else self.job.running_since
        return self.trial.submitted_at or self.trial.proposed_at
