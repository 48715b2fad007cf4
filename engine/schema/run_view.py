"""One run with its ranks put together: the rows that measurement and checks share.

Sums over ranks are the whole job's; sums of hashes are taken modulo 2**64, so any layout of the same
samples or shards gives the same value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from engine.schema.evidence import RankEvidence, RunEvidence, UpdateRecord
from engine.units import NS_PER_S

HASH_MODULUS = 1 << 64
_SAME_ON_ALL_RANKS = 1e-5


class RunView:
    """Rows of updates that every expected rank reported.

    Attributes:
        run: The evidence.
        ranks: Evidence of the expected ranks that left a trace, by rank.
        rows: rows[i] = the records of update i, one a rank; complete rows only, from update 0 without a gap.
    """

    def __init__(self, run: RunEvidence) -> None:
        self.run = run
        expected = range(max(run.world_size, 0)) if run.world_size < 1 << 20 else range(0)
        known = {rank.rank: rank for rank in run.ranks}
        self.ranks: tuple[RankEvidence, ...] = tuple(
            known[rank] for rank in sorted(known) if rank in expected
        )
        self.complete = len(self.ranks) == len(expected) > 0
        self.rows: tuple[tuple[UpdateRecord, ...], ...] = self._rows() if self.complete else ()

    def _rows(self) -> tuple[tuple[UpdateRecord, ...], ...]:
        tables = [{update.index: update for update in rank.updates} for rank in self.ranks]
        rows: list[tuple[UpdateRecord, ...]] = []
        while all(len(rows) in table for table in tables):
            rows.append(tuple(table[len(rows)] for table in tables))
        return tuple(rows)

    @property
    def window(self) -> range:
        """Indices of the measured updates, whether or not they were reached."""
        first = max(self.run.total_updates - self.run.measured_updates, 0)
        return range(first, max(self.run.total_updates, first))

    def why_unseen(self, name: str) -> str:
        """The reason of the first rank that cannot show the quantity."""
        if not self.ranks:
            return "no rank left any record"
        return next(
            (rank.why_unseen(name) for rank in self.ranks if name in rank.unavailable), ""
        ) or self.ranks[0].why_unseen(name)


def total(row: Sequence[UpdateRecord], value: Callable[[UpdateRecord], int | None]) -> int | None:
    """Sum over ranks; None where any rank cannot see it."""
    values = [value(record) for record in row]
    if not values or None in values:
        return None
    return sum(number for number in values if number is not None)


def hash_total(values: Iterable[int | None]) -> int | None:
    """Sum modulo 2**64; None where any part is unseen."""
    parts = list(values)
    if not parts or None in parts:
        return None
    return sum(part for part in parts if part is not None) % HASH_MODULUS


def mean(values: Sequence[float]) -> float:
    """Arithmetic mean, correctly rounded before the division, so the order does not matter."""
    return math.fsum(values) / len(values)


def step_time_s(row: Sequence[UpdateRecord]) -> float | None:
    """Wall time of the slowest rank in seconds; None where a rank's is unseen or not positive."""
    walls = [record.wall_ns for record in row]
    if not walls or any(wall is None or wall <= 0 for wall in walls):
        return None
    return max(wall for wall in walls if wall is not None) / NS_PER_S


def update_loss(row: Sequence[UpdateRecord]) -> float | None:
    """Mean over ranks of the sum of the backward roots: the objective that data parallelism descends."""
    if not row or any(not record.loss or "loss" in record.nonfinite for record in row):
        return None
    return mean([math.fsum(record.loss or ()) for record in row])


def combine_norms(values: Sequence[float]) -> float:
    """The norm of a whole from its parts on the ranks.

    Replicas show the same number on every rank; shards add in squares.
    """
    high, low = max(values), min(values)
    if high - low <= _SAME_ON_ALL_RANKS * abs(high):
        return mean(values)
    return math.sqrt(math.fsum(value * value for value in values))


@dataclass(frozen=True)
class NormReading:
    """The total gradient norm of one update.

    whole: before clipping where clipping returned it, else as the optimizer found it (after any clipping that
    the probe did not see); applied: as the optimizer used it. from_clip: which of the two `whole` is.
    """

    whole: float
    applied: float
    from_clip: bool


def norm_reading(row: Sequence[UpdateRecord]) -> NormReading | None:
    """The gradient norm before and after clipping; None where a rank's is unseen."""
    norm = gradient_norm(row)
    if norm is None:
        return None
    from_clip = any((record.grad_norm_source or "").startswith("clip") for record in row)
    limits = {limit for record in row for limit in record.clip_max or ()}
    once = all(len(record.clip_max or ()) <= 1 for record in row)
    applied = min(norm, *limits) if from_clip and once and len(limits) == 1 else norm
    return NormReading(whole=norm, applied=applied, from_clip=from_clip)


def norm_gap(old: NormReading, new: NormReading) -> float:
    """Relative difference; norms seen before and after clipping are compared as the optimizer used them."""
    same_place = old.from_clip == new.from_clip
    before, after = (old.whole, new.whole) if same_place else (old.applied, new.applied)
    return abs(after - before) / abs(before) if before else float(after != before)


def gradient_norm(row: Sequence[UpdateRecord]) -> float | None:
    """The total gradient norm over all ranks; None where a rank's is unseen."""
    values = [None if "grad_norm" in record.nonfinite else record.grad_norm for record in row]
    seen = [value for value in values if value is not None]
    if not seen or len(seen) < len(values):
        return None
    # Clipping may return the whole norm although the gradients are sharded; what the probe sums is a part.
    if any(record.grad_norm_source == "foreach_shard" for record in row):
        return math.sqrt(math.fsum(value * value for value in seen))
    return combine_norms(seen)
