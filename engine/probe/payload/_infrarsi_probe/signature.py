"""Names, shapes, dtypes, ties and contents of a model, the same for every sharding that can be read locally.

The content hash of a tensor is the sum over its elements of a mix of the element's bits and its *global*
linear index, so the hashes of shards add up (modulo 2**64) to the hash of the whole. Work is done in chunks
of 2**16 elements: the memory peak of the training does not move.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe.rowhash import CHUNK, GOLDEN, avalanche
from _infrarsi_probe.tensors import as_hash, dtype_name, local

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

_WRAPPER_PARTS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")


class Unreadable(Exception):
    """The tensor's content cannot be related to global positions from this rank alone."""


def signature(session: Session, module: Any, when: str) -> dict[str, Any]:
    """The fields of a signature record; content that cannot be read is null and `unavailable` says why."""
    torch = session.torch
    reasons: list[str] = []
    opaque = opaque_wrapper(module)
    if opaque is not None:
        reasons.append(opaque)
    groups = session.optimizers.group_of_parameter()
    first: dict[int, str] = {}
    parameters = []
    named = list(module.named_parameters(remove_duplicate=False))
    known = {id(p) for _, p in named}
    named += [(name, p) for name, p in session.optimizers.named_parameters() if id(p) not in known]
    for raw, parameter in named:
        entry = _entry(torch, clean_name(raw), parameter, first, reasons, opaque is None)
        entry["group"] = groups.get(id(parameter)) if when == "end" else None
        parameters.append(entry)
    seen: dict[int, str] = {}
    buffers = [
        _entry(torch, clean_name(raw), buffer, seen, reasons, opaque is None)
        for raw, buffer in module.named_buffers(remove_duplicate=False)
    ]
    unavailable = "; ".join(dict.fromkeys(reasons))[:500] or None
    return {"params": parameters, "buffers": buffers, "unavailable": unavailable}


def clean_name(name: str) -> str:
    """The parameter's name in the user's model: without the parts that wrappers add."""
    for part in _WRAPPER_PARTS:
        name = name.replace(part, "")
    while name.startswith("module."):
        name = name[len("module.") :]
    return name


def class_name(module: Any) -> str:
    """Class of the user's model below compile and data-parallel wrappers."""
    for _ in range(8):
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DistributedDataParallel", "FullyShardedDataParallel"):
            inner = module.module
        if inner is None:
            break
        module = inner
    name = type(module).__name__
    return name[4:] if name.startswith("FSDP") and hasattr(module, "unshard") else name


def global_offset(tensor: Any) -> int:
    """Global index of the first local element; raises Unreadable unless shards are blocks of rows."""
    if not hasattr(tensor, "_local_tensor"):
        return 0
    for placement in tensor.placements:
        kind = type(placement).__name__
        if kind != "Replicate" and not (kind == "Shard" and placement.dim == 0):
            raise Unreadable("placement %s is not supported" % (placement,))
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    offset = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)[1]
    row = int(tensor.numel()) // max(1, int(tensor.shape[0])) if tensor.dim() else 1
    return int(offset[0]) * row if offset else 0


def pieces(tensor: Any) -> Iterator[tuple[int, Any]]:
    """Flat pieces of 2**16 elements (or a longer row) with their linear index; never a copy of the whole."""
    if tensor.is_contiguous():
        flat = tensor.view(-1)
        for begin in range(0, flat.numel(), CHUNK):
            yield begin, flat[begin : begin + CHUNK]
        return
    row = tensor.numel() // max(1, tensor.shape[0])
    step = max(1, CHUNK // max(1, row))
    for begin in range(0, tensor.shape[0], step):
        yield begin * row, tensor[begin : begin + step].reshape(-1)


def content(torch: Any, tensor: Any) -> tuple[Any, Optional[float]]:
    """Hash (0-d tensor) and sum of squares (floats only) of this rank's part."""
    offset = global_offset(tensor)
    values = local(tensor).detach()
    if values.device.type == "meta":
        raise Unreadable("tensor has no data (meta device)")
    if values.layout is not torch.strided:
        raise Unreadable("tensor is not dense")
    if values.is_complex():
        values, offset = torch.view_as_real(values), offset * 2
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    device = values.device
    total = torch.zeros((), dtype=torch.int64, device=device)
    squares = torch.zeros((), dtype=torch.float64, device=device) if values.is_floating_point() else None
    index = torch.arange(min(CHUNK, max(1, values.numel())), dtype=torch.int64, device=device)
    for begin, piece in pieces(values):
        if piece.numel() > index.numel():
            index = torch.arange(piece.numel(), dtype=torch.int64, device=device)
        keys = (index[: piece.numel()] + (offset + begin)).mul_(GOLDEN).bitwise_or_(1)
        total += avalanche((piece.view(integer).to(torch.int64) + 1).mul_(keys)).sum()
        if squares is not None:
            squares += piece.to(torch.float64).square_().sum()
    return total, None if squares is None else float(squares)


def _entry(
    torch: Any, name: str, tensor: Any, first: dict[int, str], reasons: list[str], readable: bool
) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": name,
        "shape": [int(size) for size in tensor.shape],
        "dtype": dtype_name(tensor.dtype),
        "trainable": bool(tensor.requires_grad),
        "tied_to": first.get(id(tensor)),
        "hash": None,
        "sumsq": None,
    }
    if hasattr(tensor, "_local_tensor"):
        entry["sharded"] = True
        entry["replica"] = replica(tensor)
    if entry["tied_to"] is not None:
        return entry
    first[id(tensor)] = name
    if not readable:
        return entry
    try:
        total, entry["sumsq"] = content(torch, tensor)
        entry["hash"] = as_hash(total)
    except (Unreadable, RuntimeError, NotImplementedError, KeyError) as error:
        reasons.append("%s: %s" % (name, error))
    return entry


def replica(tensor: Any) -> int:
    """Which copy of the shard this rank holds: only copies with number 0 may be added up."""
    coordinate = tensor.device_mesh.get_coordinate() or []
    number = 0
    for dimension, placement in enumerate(tensor.placements):
        if type(placement).__name__ == "Replicate":
            number = number * int(tensor.device_mesh.size(dimension)) + int(coordinate[dimension])
    return number


def opaque_wrapper(module: Any) -> Optional[str]:
    """Why names and contents of this model cannot be related on one rank; None where they can."""
    for inner in module.modules():
        if type(inner).__name__ == "FullyShardedDataParallel":
            return "FSDP1 flattens parameters: contents cannot be related to names"
    if any(hasattr(parameter, "ds_id") for parameter in module.parameters()):
        return "DeepSpeed ZeRO-3 partitions parameters: contents cannot be read on one rank"
    return None
