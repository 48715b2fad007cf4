"""Giving allocations back: ask the holder, and where it does not answer, Slurm."""

from __future__ import annotations

import time

from slurm.held.allocations import Allocations
from slurm.held.holding import Holding

OBEY_S = 15.0
"""Seconds that a holder gets to leave before Slurm is told to end its job."""
_LOOK_S = 0.1


def give_back(allocations: Allocations, *, obey_s: float = OBEY_S) -> None:
    """Have every allocation end that is still held or queued.

    One with trials to run does those first and is not waited for; one that waits for nothing is cancelled.

    Raises:
        InfrastructureError: the disk refuses the order to leave.
    """
    waited_for = []
    for holding in allocations.all():
        if holding.progress.leaving is not None or holding.record.use is not None:
            continue
        allocations.hand_over(holding, "released")
        if holding.progress.allocated is not None and not holding.open_tokens:
            waited_for.append(holding)
    deadline = time.monotonic() + obey_s
    while waited_for and time.monotonic() < deadline:
        waited_for = [holding for holding in waited_for if _is_held(allocations, holding)]
        time.sleep(_LOOK_S if waited_for else 0.0)
    for holding in waited_for:
        allocations.cancel_job(holding)


def _is_held(allocations: Allocations, holding: Holding) -> bool:
    return holding.refresh().leaving is None and allocations.ending(holding) is None
