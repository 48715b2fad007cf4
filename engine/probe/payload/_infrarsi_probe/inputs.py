"""Finds token ids, attention mask and labels among the arguments of a model's outermost call."""

from __future__ import annotations

import inspect
from typing import Any, Optional

ID_NAMES = ("input_ids", "inputs", "input", "tokens", "idx", "ids", "x")
LABEL_NAMES = ("labels", "label", "targets", "target", "y", "lm_labels")
MASK_NAMES = ("attention_mask", "padding_mask", "mask")
OTHER_NAMES = (
    "position_ids",
    "token_type_ids",
    "cache_position",
    "segment_ids",
    "document_ids",
    "input_pos",
    "seqlens",
    "max_seqlen",
    "cu_seqlens",
    "cu_seq_lens_q",
    "cu_seq_lens_k",
    "seq_idx",
)
MAX_TENSORS = 64
MAX_DEPTH = 3


class Batch:
    """What one outermost call was given; `source` is the tensor that stands for the samples."""

    def __init__(self, tensor_class: Any, module: Any, args: Any, kwargs: Any) -> None:
        self.source: Any = None
        self.mask: Any = None
        self.labels: Any = None
        self.has_activations = False
        self.names_ids = False
        tensors = self._data(tensor_class, _named(module, args, kwargs))
        integers = [(name, t) for name, t in tensors if t.dim() >= 1 and _is_integer(t)]
        ids = _by_name(integers, ID_NAMES)
        if ids is None:
            ids = _first(integers, (*LABEL_NAMES, *MASK_NAMES, *OTHER_NAMES))
        if ids is not None:
            self.source, self.names_ids = ids, True
            self._find_companions(tensors, integers)
        else:
            labels = _by_name(integers, LABEL_NAMES)
            floating = [(name, t) for name, t in tensors if t.is_floating_point() and t.dim() >= 1]
            self.source = _first(floating, MASK_NAMES)
            self.labels = labels

    def _data(self, tensor_class: Any, named: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
        kept = []
        for name, tensor in named:
            if not isinstance(tensor, tensor_class) or tensor.numel() == 0:
                continue
            if tensor.grad_fn is not None:
                self.has_activations = True
            elif not tensor.requires_grad:
                kept.append((name, tensor))
        return kept

    def _find_companions(self, tensors: list[tuple[str, Any]], integers: list[tuple[str, Any]]) -> None:
        shape = self.source.shape
        same = [(name, t) for name, t in tensors if t.shape == shape and t is not self.source]
        self.mask = _by_name(same, MASK_NAMES)
        self.labels = _by_name(integers, LABEL_NAMES)
        if self.labels is None:
            others = [(name, t) for name, t in same if _is_integer(t)]
            self.labels = _first(others, (*MASK_NAMES, *OTHER_NAMES))

    @property
    def samples(self) -> int:
        """Rows; a one-dimensional integer tensor is one packed row."""
        return 1 if self._is_packed() else int(self.source.shape[0])

    @property
    def tokens(self) -> int:
        """All positions: elements of an integer tensor, all but the last dimension of a floating one."""
        if self.names_ids or self.source.dim() == 1:
            return int(self.source.numel())
        return int(self.source.numel() // self.source.shape[-1])

    @property
    def rows(self) -> Any:
        """The source with one row a sample."""
        return self.source.detach().unsqueeze(0) if self._is_packed() else self.source.detach()

    @property
    def shape(self) -> str:
        """Shape as text, for example `8x1024`."""
        return "x".join(str(size) for size in self.source.shape)

    def _is_packed(self) -> bool:
        return self.names_ids and self.source.dim() == 1


def _named(module: Any, args: Any, kwargs: Any) -> list[tuple[str, Any]]:
    names = _parameter_names(module) if args else ()
    named: list[tuple[str, Any]] = []
    for position, value in enumerate(args):
        _flatten(names[position] if position < len(names) else "", value, named, 0)
    for name, value in kwargs.items():
        _flatten(name, value, named, 0)
    return named


def _flatten(name: str, value: Any, named: list[tuple[str, Any]], depth: int) -> None:
    if len(named) >= MAX_TENSORS or value is None or isinstance(value, (str, int, float)):
        return
    if hasattr(value, "numel"):
        named.append((name, value))
    elif depth < MAX_DEPTH:
        if callable(getattr(value, "items", None)):
            for key, inner in list(value.items()):
                _flatten(str(key), inner, named, depth + 1)
        elif isinstance(value, (list, tuple)):
            for inner in value:
                _flatten(name if depth == 0 and len(value) == 1 else "", inner, named, depth + 1)
        elif hasattr(value, "__dataclass_fields__"):
            for key in value.__dataclass_fields__:
                _flatten(key, getattr(value, key, None), named, depth + 1)


_name_cache: dict[type, tuple[str, ...]] = {}


def _parameter_names(module: Any) -> tuple[str, ...]:
    function = module
    for _ in range(8):
        inner = getattr(function, "_orig_mod", None)
        if inner is None and type(function).__name__ in (
            "DistributedDataParallel",
            "FullyShardedDataParallel",
        ):
            inner = function.module
        if inner is None:
            break
        function = inner
    if not hasattr(function, "forward"):
        return _names_of(function)
    kind = type(function)
    if kind not in _name_cache:
        _name_cache[kind] = _names_of(kind.forward)
    return _name_cache[kind]


def _names_of(function: Any) -> tuple[str, ...]:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ()
    names: tuple[str, ...] = code.co_varnames[: code.co_argcount]
    return names[1:] if names[:1] == ("self",) else names


def _is_integer(tensor: Any) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.element_size() == 1)


def _by_name(named: list[tuple[str, Any]], wanted: tuple[str, ...]) -> Optional[Any]:
    for name in wanted:
        for candidate, tensor in named:
            if candidate == name:
                return tensor
    return None


def _first(named: list[tuple[str, Any]], unwanted: tuple[str, ...]) -> Optional[Any]:
    for name, tensor in named:
        if name not in unwanted:
            return tensor
    return None
