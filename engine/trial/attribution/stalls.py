"""Collectives that waited in vain: the rank that complains is not the one that is late."""

from __future__ import annotations

import re

from engine.schema.trial import Attribution, FailureKind
from engine.trial.attribution.faults import Fault

_WAITED = re.compile(
    r"Timed out waiting \d+ ?ms for (?:recv|send) operation|Watchdog caught collective operation timeout"
    r"|collective operation timeout|DistStoreError: .*[Tt]imed out|Monitored barrier .*timed? ?out"
)


def attribute_stall(fault: Fault) -> Attribution | None:
    """The attribution of a collective that timed out, else None."""
    if not _WAITED.search(fault.text):
        return None
    return Attribution(
        kind=FailureKind.HANG,
        blame_candidate=None,
        cause=f"{fault.where()} waited in vain for another rank: {fault.words()}",
        rank=fault.rank,
        evidence=fault.evidence,
    )
