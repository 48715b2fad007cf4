"""Baseline and candidate side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from engine.invariants.context import InvariantContext
from engine.invariants.findings import Findings
from engine.schema.evidence import RunEvidence, UpdateRecord
from engine.schema.run_view import RunView

Row = Sequence[UpdateRecord]
Value = TypeVar("Value")


class Comparison:
    """Two runs and the number of updates that both completed."""

    def __init__(self, baseline: RunEvidence, candidate: RunEvidence, context: InvariantContext) -> None:
        self.baseline = RunView(baseline)
        self.candidate = RunView(candidate)
        self.context = context
        self.updates = min(len(self.baseline.rows), len(self.candidate.rows))

    def rows(self) -> Iterator[tuple[int, Row, Row]]:
        """(index, baseline row, candidate row) of every update that both runs completed."""
        for index in range(self.updates):
            yield index, self.baseline.rows[index], self.candidate.rows[index]

    def pairs(
        self,
        findings: Findings,
        what: str,
        key: str,
        value: Callable[[Row], Value | None],
        *,
        essential: bool = True,
    ) -> list[tuple[int, Value, Value]]:
        """(index, baseline value, candidate value) wherever both runs show it.

        A value that only the baseline shows is a failure; one that the baseline never shows is a blind spot.
        """
        found: list[tuple[int, Value, Value]] = []
        seen_before, lost = False, []
        for index, before_row, after_row in self.rows():
            before, after = value(before_row), value(after_row)
            if before is None:
                continue
            seen_before = True
            if after is None:
                lost.append(index)
            else:
                found.append((index, before, after))
        if self.updates == 0:
            self._no_rows(findings, what, value, essential=essential)
        elif lost:
            why = self.candidate.why_unseen(key)
            findings.lost(f"{what} of {describe_updates(lost)}", why)
        elif not seen_before:
            findings.unseen(
                f"{what} was not seen in the baseline: {self.baseline.why_unseen(key)}", essential=essential
            )
        return found

    def _no_rows(
        self, findings: Findings, what: str, value: Callable[[Row], Value | None], *, essential: bool
    ) -> None:
        if any(value(row) is not None for row in self.baseline.rows):
            findings.lost(what, "no update was completed on all ranks")
        else:
            findings.unseen(f"{what}: the baseline completed no update on all ranks", essential=essential)


def describe_updates(indices: Sequence[int]) -> str:
    """Indices in words: update 3; updates 3, 4, 5 and 7 more."""
    if len(indices) == 1:
        return f"update {indices[0]}"
    shown = ", ".join(str(index) for index in indices[:3])
    more = f" and {len(indices) - 3} more" if len(indices) > 3 else ""
    return f"updates {shown}{more}"
