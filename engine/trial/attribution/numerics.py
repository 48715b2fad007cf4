"""Losses that are no numbers."""

from __future__ import annotations

import re

from engine.schema.evidence import RunEvidence
from engine.schema.trial import Attribution, EvidenceLine, FailureKind
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.faults import Fault

_NON_FINITE = re.compile(
    r"returned nan values|(?:loss|norm|gradients?)\b.{0,40}\b(?:nan|inf|infinite|non-?finite)\b"
    r"|\b(?:nan|non-?finite)\b.{0,40}\b(?:loss|norm|gradients?)|loss scale already at minimum"
    r"|FloatingPointError",
    re.IGNORECASE,
)


def attribute_numerics(
    fault: Fault | None, evidence: RunEvidence, context: AttributionContext
) -> Attribution | None:
    """The attribution of a loss that stopped being a number, else None.

    Args:
        fault: The exception that ended the run, None where it ended without one.
        evidence: Its updates say which losses were not finite.
        context: The suspects.
    """
    if fault is not None and _NON_FINITE.search(fault.text):
        return Attribution(
            kind=FailureKind.NUMERICS,
            blame_candidate=_has_suspects(context),
            cause=f"{fault.where()} met a number that is not finite: {fault.words()}",
            rank=fault.rank,
            evidence=fault.evidence,
            implicated=context.implicated,
            signature="non-finite loss",
        )
    broken = [
        (update.index, rank.rank)
        for rank in evidence.ranks
        for update in rank.updates
        if "loss" in update.nonfinite
    ]
    if not broken:
        return None
    index, rank = min(broken)
    text = f"rank {rank}: the loss of update {index} is not finite"
    return Attribution(
        kind=FailureKind.NUMERICS,
        blame_candidate=_has_suspects(context),
        cause=f"the loss was not finite from update {index} on",
        rank=rank,
        evidence=(EvidenceLine(line=None, text=text),),
        implicated=context.implicated,
        signature="non-finite loss",
    )


def _has_suspects(context: AttributionContext) -> bool | None:
    return True if context.changes or context.had_patch else None
