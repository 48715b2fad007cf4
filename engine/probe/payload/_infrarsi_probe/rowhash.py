"""Content hashes that do not depend on how rows are spread over micro-batches and ranks.

A row is hashed by a multilinear form with secret odd 64-bit keys (Carter & Wegman, "Universal classes of
hash functions", 1979) followed by an avalanche step; the hashes of rows are *summed* modulo 2**64, so order
and layout cancel while repeated rows count. Everything is int64 arithmetic that wraps around, with arithmetic
right shifts.
"""

from __future__ import annotations

import hashlib
from typing import Any

CHUNK = 1 << 16
GOLDEN = -7046029254386353131  # 2**64 / golden ratio, as a signed number
MIX = -4658895280553007687


def avalanche(words: Any) -> Any:
    """Mix the bits of an int64 tensor in place (one round of the finaliser of SplitMix64)."""
    words.bitwise_xor_(words >> 31).mul_(MIX)
    return words.bitwise_xor_(words >> 28)


class RowHasher:
    """Hashes batches of rows with keys that follow from a nonce."""

    def __init__(self, torch: Any, nonce: str) -> None:
        self._torch = torch
        self._seed = int.from_bytes(hashlib.sha256(nonce.encode()).digest()[:8], "big", signed=True)
        self._keys: dict[tuple[Any, int], Any] = {}

    def rows(self, values: Any, mask: Any = None) -> Any:
        """Sum of the hashes of the rows (first dimension) of a tensor, as a 0-d int64 tensor on its device.

        Positions where `mask` (same shape) is zero do not count, so trailing padding cancels.
        """
        flat = values.reshape(values.shape[0], -1)
        flat_mask = None if mask is None else mask.reshape(flat.shape)
        width = flat.shape[1]
        rows = max(1, CHUNK // max(1, width))
        total = None
        for top in range(0, flat.shape[0], rows):
            sums = None
            for left in range(0, width, CHUNK):
                block = (slice(top, top + rows), slice(left, left + CHUNK))
                words = self._words(flat[block])
                if flat_mask is not None:
                    words = words * (flat_mask[block] != 0)
                part = (words * self._keys_for(left, words.shape[1], words.device)).sum(1)
                sums = part if sums is None else sums + part
            mixed = avalanche(sums).sum()
            total = mixed if total is None else total + mixed
        return total

    def elements(self, values: Any, keep: Any = None) -> Any:
        """Sum of the hashes of single elements, those where `keep` is true; 0-d int64 tensor."""
        words = avalanche(self._words(values.reshape(-1)) * self._keys_for(0, 1, values.device))
        return (words if keep is None else words * keep.reshape(-1)).sum()

    def _words(self, values: Any) -> Any:
        """Int64 tensor in fresh memory, no element of it zero for small values."""
        torch = self._torch
        if values.is_floating_point():
            values = values.to(torch.float32).contiguous().view(torch.int32)
        return values.to(torch.int64) + 1

    def _keys_for(self, start: int, length: int, device: Any) -> Any:
        """Keys of positions from `start`; those of the first chunk are kept."""
        size = 1 << max(0, length - 1).bit_length()
        keys = self._keys.get((device, size)) if start == 0 else None
        if keys is None:
            torch = self._torch
            counter = torch.arange(start + 1, start + size + 1, dtype=torch.int64, device=device)
            keys = avalanche(counter * GOLDEN + self._seed) | 1
            if start == 0:
                self._keys[(device, size)] = keys
        return keys[:length]
