"""Which failures say how much memory a candidate needs."""

from __future__ import annotations

from engine.schema.trial import Attribution, FailureKind
from engine.units import gib


def censored_bound_gib(attribution: Attribution) -> float | None:
    """Lower bound of the candidate's peak memory, or None where the failure proves none.

    Only an allocator's refusal on the task's training device under a known limit is a censored point of the
    memory
    model: what was allocated + what was asked for. `attribute` gives `required_bytes` to no other failure.
    """
    if attribution.kind not in (FailureKind.OOM_GPU, FailureKind.OOM_HOST):
        return None
    if attribution.blame_candidate is not True or attribution.limit_bytes is None:
        return None
    return None if attribution.required_bytes is None else gib(attribution.required_bytes)
