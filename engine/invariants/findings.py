"""How one check collects what it saw and becomes a verdict."""

from __future__ import annotations

from typing import Final, Literal

from engine.schema.trial import InvariantResult, InvariantStatus

Layer = Literal["execution", "workload", "update scheduling", "numerical precision", "timing consistency"]

INVARIANTS: Final[dict[str, Layer]] = {
    "clean_exit": "execution",
    "steps_completed": "execution",
    "allocation_identity": "execution",
    "scope_respected": "execution",
    "model_identity": "workload",
    "data_identity": "workload",
    "tokens_per_update": "workload",
    "work_performed": "workload",
    "optimizer_identity": "update scheduling",
    "learning_rate_trace": "update scheduling",
    "update_cadence": "update scheduling",
    "precision_floor": "numerical precision",
    "loss_trajectory": "numerical precision",
    "gradient_health": "numerical precision",
    "clock_agreement": "timing consistency",
    "steady_state": "timing consistency",
}
"""Name → layer, in the order in which verdicts are given."""

_EVIDENCE_LINES = 8


class Findings:
    """Collects comparisons, violations and blind spots of one invariant.

    A violation fails it. Without one it passes if every essential part was compared, else it is skipped.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._failure: tuple[str | None, str | None, str] | None = None
        self._failures = 0
        self._is_statistical = True
        self._compared: list[str] = []
        self._unseen: list[str] = []
        self._essential: list[str] = []
        self._evidence: list[str] = []

    def fail(
        self,
        reason: str,
        *,
        expected: str | None = None,
        observed: str | None = None,
        statistical: bool = False,
    ) -> None:
        """A violation; the first one is the verdict's headline, all are evidence.

        A statistical one may be the machine's doing: it has to come again before it counts.
        """
        self._failures += 1
        self._is_statistical = self._is_statistical and statistical
        if self._failure is None:
            self._failure = (expected, observed, reason)
        self.note(reason)

    def lost(self, what: str, why: str | None = None) -> None:
        """A value that the baseline shows and the candidate does not."""
        tail = f" ({why})" if why else ""
        self.fail(
            f"lost visibility: {what} was seen in the baseline but not in the candidate{tail}",
            expected=f"{what} visible, as in the baseline",
            observed="not visible",
        )

    def passed(self, text: str) -> None:
        """Something was compared and agrees."""
        self._compared.append(text)

    def unseen(self, reason: str, *, essential: bool = False) -> None:
        """Something could not be compared; an essential part keeps the invariant from passing."""
        (self._essential if essential else self._unseen).append(reason)

    def note(self, line: str) -> None:
        """Evidence that names ranks and updates."""
        if len(self._evidence) < _EVIDENCE_LINES and line not in self._evidence:
            self._evidence.append(line)

    @property
    def failed(self) -> bool:
        """Whether a violation was found."""
        return self._failure is not None

    def result(self) -> InvariantResult:
        """The verdict."""
        expected: str | None = None
        observed: str | None = None
        if self._failure is not None:
            status = InvariantStatus.FAILED
            expected, observed, reason = self._failure
            if self._failures > 1:
                reason += f" (and {self._failures - 1} more)"
        elif self._essential or not self._compared:
            status = InvariantStatus.SKIPPED
            reason = (
                "; ".join([*self._essential, *self._unseen]) or "nothing to compare was seen in either run"
            )
        else:
            status = InvariantStatus.PASSED
            reason = "; ".join(self._compared)
            if self._unseen:
                reason += f". Not compared: {'; '.join(self._unseen)}"
        return InvariantResult(
            layer=INVARIANTS[self.name],
            name=self.name,
            status=status,
            expected=expected,
            observed=observed,
            reason=reason,
            evidence=tuple(self._evidence),
            statistical=self.failed and self._is_statistical,
        )
