"""What an advisor hands to the search: ideas with numbers that the search calibrates and never trusts."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from engine.schema.base import Record, Scalar

StandardDeviation = Annotated[float, Field(ge=0)]


class Idea(Record):
    """A change of the baseline's configuration, and what the advisor expects of it.

    Attributes:
        changes: Mechanism → canonical value, only where it differs from the baseline.
        log_speedup_mean: Natural log of the speed-up over the baseline.
        log_speedup_sd: Standard deviation of that belief.
        log_memory_mean: Natural log of peak memory over the baseline's.
        log_memory_sd: Standard deviation of that belief.
        reason: One sentence for a person.
        relieves: The bottlenecks of the diagnosis that it eases, the dominant one first.
        source: table = every number comes from the mechanism table; partly = some do; guess = none does.
        advisor: Who had the idea.
    """

    changes: dict[str, Scalar]
    log_speedup_mean: float
    log_speedup_sd: StandardDeviation
    log_memory_mean: float
    log_memory_sd: StandardDeviation
    reason: str
    relieves: tuple[str, ...] = ()
    source: Literal["table", "partly", "guess"] = "table"
    advisor: Literal["rules", "claude"] = "rules"
