"""What the programs' parsers give and what the state source answers."""

from __future__ import annotations

import dataclasses
from typing import Literal

from engine.schema.job import SchedulerFacts

Presence = Literal["present", "absent", "unknown"]


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """One job in one answer.

    Attributes:
        facts: What was said.
        start_estimate: When a waiting job is expected to start, unix seconds.
        was_suspended: It stood still at some time, as far as the program tells.
    """

    facts: SchedulerFacts
    start_estimate: float | None = None
    was_suspended: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What is known about a job now.

    Attributes:
        facts: The last that any program said; None before the first answer.
        presence: present = known to the scheduler when it last answered; absent = it answered repeatedly and
            does not know the job any more; unknown = neither can be said (yet).
        age_s: Seconds since the scheduler last said something about the job; None = never.
        problem: Why the last round gave no answer, in a line; None when it did.
        start_estimate: When a waiting job is expected to start, unix seconds.
        was_suspended: The job stood still at some reading: times measured in it are worth nothing.
    """

    facts: SchedulerFacts | None
    presence: Presence
    age_s: float | None
    problem: str | None = None
    start_estimate: float | None = None
    was_suspended: bool = False
