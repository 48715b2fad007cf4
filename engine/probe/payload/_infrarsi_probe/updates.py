"""Collects what belongs to one optimizer update; sends it when the next event shows that it is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe import clocks
from _infrarsi_probe.record import update_fields

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class Accumulator:
    """Raw observations since the last update. Tensors stay tensors until the update is closed."""

    def __init__(self) -> None:
        self.ns = {"forward": 0, "backward": 0, "optimizer": 0, "data": 0, "eval": 0, "communication": 0}
        self.n = {"forward": 0, "backward": 0, "eval": 0, "data": 0, "optimizer": 0, "skipped": 0, "other": 0}
        self.device_spans: list[Any] = []  # (phase, start event, end event, inside an optimizer step)
        self.communication_calls = 0
        self.samples = 0
        self.tokens = 0
        self.real_tokens: Any = None
        self.shapes: list[str] = []
        self.held: dict[Any, Any] = {}  # copies of small batches, see digest
        self.held_bytes = 0
        self.data_hash: Any = None
        self.label_hash: Any = None
        self.label_count: Any = None
        self.cross_entropy_count: Any = None
        self.cross_entropy_hash: Any = None
        self.losses: list[Any] = []  # (root, loss scale or None)
        self.clips: list[Any] = []  # (norm, max norm, norm type, holds only a shard's part)
        self.squares: list[Any] = []  # local sums of squared gradients
        self.norm_is_shard = False
        self.norm_replica = 0
        self.hyper: dict[int, Any] = {}
        self.steps: list[dict[str, Any]] = []
        self.autocast: set[str] = set()
        self.grad_dtypes: set[str] = set()
        self.param_dtypes: set[str] = set()
        self.overflows: list[Any] = []  # found_inf of steps that the loss scaler leaves to a fused kernel
        self.opaque_step = False  # the step ran inside a compiled function

    def add(self, field: str, value: Any) -> None:
        """Add a number or a tensor to a field that starts as None."""
        before = getattr(self, field)
        if before is not None and hasattr(value, "device"):
            before = before.to(value.device)
        setattr(self, field, value if before is None else before + value)


class Updates:
    """Numbers the updates of this rank and keeps the marks between them."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.current = Accumulator()
        self.index = 0
        self.pending = False
        self._start = (0, 0, 0)
        self._end = (0, 0, 0)

    def begin(self) -> None:
        """Time zero of the first update: torch was just imported."""
        self._start = self._marks()

    def mark_end(self) -> None:
        """An optimizer step just ended; the update ends here unless another step follows directly."""
        self._end = self._marks()
        self.pending = True

    def close(self) -> None:
        """Send what was collected, as an update or as a step that the loss scaler skipped."""
        session, collected = self.session, self.current
        self.pending = False
        self.current = Accumulator()
        was_busy, session.busy[0] = session.busy[0], True
        try:
            skipped = not collected.steps or _overflowed(collected)
            fields: dict[str, Any] = {"i": self.index}
            names = ("wall_ns", "cpu_ns", "probe_ns")
            fields.update((name, self._end[k] - self._start[k]) for k, name in enumerate(names))
            fields["end_ns"] = self._end[0]
            fields.update(update_fields(session, collected, self.index))
            if skipped:
                session.channel.send("skipped", fields)
                self.current.n["skipped"] = collected.n["skipped"] or 1
            else:
                session.channel.send("update", fields)
                self.index += 1
                session.optimizers.describe_early(self.index)
            self._start = self._end
        finally:
            session.busy[0] = was_busy

    def _marks(self) -> tuple[int, int, int]:
        return clocks.perf_ns(), clocks.cpu_ns(), self.session.probe_ns


def _overflowed(collected: Accumulator) -> bool:
    return bool(collected.overflows) and all(float(found) > 0 for found in collected.overflows)
