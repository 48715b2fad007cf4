"""Moves parameters by one unit in the last place: the smallest change that is numerically equivalent.

The direction (up, down or none) of an element follows from a seed, the parameter's name and the element's
global index, so that replicas stay equal and shards agree with the unsharded model.
"""

from __future__ import annotations

import hashlib
from typing import Any

from _infrarsi_probe.rowhash import GOLDEN, avalanche
from _infrarsi_probe.signature import clean_name, global_offset, pieces
from _infrarsi_probe.tensors import dtype_name, local

_LAST_FINITE = {"float16": 0x7BFF, "bfloat16": 0x7F7F, "float32": 0x7F7FFFFF, "float64": 0x7FEFFFFFFFFFFFFF}


def perturb(torch: Any, module: Any, seed: int) -> int:
    """Perturb every trainable floating parameter in place; returns how many local elements moved.

    Raises Unreadable, before anything is moved, for shards that are not blocks of rows.
    """
    integers = {
        torch.float16: torch.int16,
        torch.bfloat16: torch.int16,
        torch.float32: torch.int32,
        torch.float64: torch.int64,
    }
    wanted = [
        (_seed(seed, clean_name(raw)), global_offset(parameter), parameter)
        for raw, parameter in module.named_parameters()
        if parameter.requires_grad and parameter.dtype in integers
    ]
    moved = 0
    with torch.no_grad():
        for name_seed, offset, parameter in wanted:
            last = _LAST_FINITE[dtype_name(parameter.dtype)]
            values = local(parameter).detach()
            moved += _perturb_tensor(torch, values, integers[parameter.dtype], last, offset, name_seed)
    return moved


def _perturb_tensor(torch: Any, values: Any, integer: Any, last: int, offset: int, seed: int) -> int:
    moved = 0
    for begin, piece in pieces(values):
        index = torch.arange(piece.numel(), dtype=torch.int64, device=piece.device)
        draws = avalanche((index + (offset + begin)).mul_(GOLDEN) + seed)
        bits = piece.view(integer)
        # Bits without the sign order magnitudes; zeros and the ends of the range stay where they are.
        magnitude = bits.to(torch.int64) & (last | (last + 1))
        movable = (magnitude > 0) & (magnitude < last)
        direction = (draws.remainder_(3) - 1) * movable
        bits.add_(direction.to(integer))
        if not values.is_contiguous():
            _write_back(values, begin, piece)
        moved += int((direction != 0).sum())
    return moved


def _write_back(values: Any, begin: int, piece: Any) -> None:
    row = values.numel() // max(1, values.shape[0])
    first, count = begin // row, piece.numel() // row
    values[first : first + count].copy_(piece.reshape(values[first : first + count].shape))


def _seed(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(("%d/%s" % (seed, name)).encode()).digest()[:8], "big", signed=True)
