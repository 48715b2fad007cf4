"""Turns what the model was fed into hashes and counts.

Small integer batches are copied when they are seen (the script may reuse its buffers) and hashed together
when the update is closed: one run over a few hundred kilobytes is much cheaper than one in each micro-batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe.rowhash import RowHasher
from _infrarsi_probe.tensors import local

if TYPE_CHECKING:
    from _infrarsi_probe.inputs import Batch
    from _infrarsi_probe.session import Session
    from _infrarsi_probe.updates import Accumulator

HELD_BYTES = 8 << 20  # of one update; what does not fit is hashed at once
MAX_SHAPES = 4


class Digest:
    """Feeds the fields of the accumulator that describe data and labels."""

    def __init__(self, session: Session) -> None:
        self._torch = session.torch
        self._hasher = RowHasher(session.torch, session.settings.nonce)

    def add_batch(self, collected: Accumulator, batch: Batch) -> None:
        """One micro-batch of the model."""
        collected.samples += batch.samples
        collected.tokens += batch.tokens
        if len(collected.shapes) < MAX_SHAPES:
            collected.shapes.append(batch.shape)
        mask = None if batch.mask is None else local(batch.mask).detach()
        self._hold(collected, ("data", None), local(batch.rows), mask)
        if batch.labels is not None:
            labels = local(batch.labels).detach()
            self._hold(
                collected, ("labels", None), labels.unsqueeze(0) if labels.dim() == 1 else labels, None
            )

    def add_cross_entropy(self, collected: Accumulator, target: Any, ignored: int) -> None:
        """The targets of one call of cross entropy."""
        self._hold(collected, ("cross_entropy", ignored), local(target).detach().reshape(-1), None)

    def resolve(self, collected: Accumulator) -> None:
        """Hash everything that was held."""
        held, collected.held = collected.held, {}
        for (kind, *_), parts in held.items():
            values = [value for value, _ in parts]
            masks = [mask for _, mask in parts]
            together = values[0] if len(values) == 1 else self._torch.cat(values)
            mask = None
            if masks[0] is not None:
                mask = masks[0] if len(masks) == 1 else self._torch.cat(masks)
            self._count(collected, kind, together, mask)

    def _hold(self, collected: Accumulator, kind: tuple[str, Any], values: Any, mask: Any) -> None:
        size = values.numel() * values.element_size()
        if values.is_floating_point() or collected.held_bytes + size > HELD_BYTES:
            self._count(collected, kind, values, mask)
            return
        collected.held_bytes += size
        key = (kind, values.shape[1:], values.dtype, values.device, mask is None)
        parts = collected.held.setdefault(key, [])
        parts.append((values.clone(), None if mask is None else mask.clone()))

    def _count(self, collected: Accumulator, kind: tuple[str, Any], values: Any, mask: Any) -> None:
        name, ignored = kind
        if name == "data":
            collected.add("data_hash", self._hasher.rows(values, mask))
            if mask is not None:
                collected.add("real_tokens", (mask != 0).sum())
        elif name == "labels":
            collected.add("label_hash", self._hasher.rows(values))
            collected.add("label_count", (values >= 0).sum())
        else:
            keep = values != ignored
            collected.add("cross_entropy_count", keep.sum())
            if collected.label_hash is None:
                collected.add("cross_entropy_hash", self._hasher.elements(values, keep))
