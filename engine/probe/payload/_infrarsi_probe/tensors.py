"""Reading single values out of tensors, sharded or not, without any communication."""

from __future__ import annotations

from typing import Any, Optional

_MASK_64 = (1 << 64) - 1


def local(tensor: Any) -> Any:
    """This rank's part of a distributed tensor, or the tensor itself."""
    return tensor._local_tensor if hasattr(tensor, "_local_tensor") else tensor


def is_sharded(tensor: Any) -> bool:
    """Whether the tensor is a distributed one."""
    return hasattr(tensor, "_local_tensor")


def dtype_name(dtype: Any) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).rpartition(".")[2]


def as_float(value: Any) -> float:
    """A number or one-element tensor as float; a shard's own value where it is distributed."""
    return float(local(value))


def as_int(value: Any) -> Optional[int]:
    """A number or one-element tensor as int."""
    return None if value is None else int(value)


def as_hash(value: Any) -> Optional[str]:
    """A hash modulo 2**64 as 16 hexadecimal digits."""
    return None if value is None else "%016x" % (int(value) & _MASK_64)
