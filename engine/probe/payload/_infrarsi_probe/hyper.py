"""Hyper-parameters and state of optimizers as plain values."""

from __future__ import annotations

from typing import Any

from _infrarsi_probe.tensors import dtype_name, local

STEP_NAMES = (
    "lr",
    "weight_decay",
    "betas",
    "eps",
    "momentum",
    "dampening",
    "nesterov",
    "amsgrad",
    "maximize",
    "alpha",
    "ns_steps",
)


def unwrapped(optimizer: Any) -> Any:
    """The optimizer that does the arithmetic below wrappers such as ZeroRedundancyOptimizer."""
    for _ in range(4):
        inner = getattr(optimizer, "optim", None) or getattr(optimizer, "optimizer", None)
        if inner is None or not hasattr(inner, "param_groups") or not hasattr(inner, "state"):
            break
        optimizer = inner
    return optimizer


def step_hyper(optimizer: Any, tensor_class: Any) -> list[dict[str, Any]]:
    """For each group the values that a schedule may change, as they stand when a step begins."""
    return [
        {name: plain(group[name], tensor_class) for name in STEP_NAMES if name in group}
        for group in optimizer.param_groups
    ]


def described_groups(optimizer: Any, tensor_class: Any) -> list[dict[str, Any]]:
    """All hyper-parameters of each group, with its number of tensors `n` and of elements `numel`."""
    groups = []
    for group in optimizer.param_groups:
        fields = {str(name): plain(value, tensor_class) for name, value in group.items() if name != "params"}
        fields["n"] = len(group["params"])
        fields["numel"] = sum(int(parameter.numel()) for parameter in group["params"])
        groups.append(fields)
    return groups


def state_dtypes(optimizer: Any, tensor_class: Any) -> dict[str, int]:
    """Local elements of optimizer state by name and dtype, such as `exp_avg:float32`."""
    counts: dict[str, int] = {}
    for state in optimizer.state.values():
        for name, value in state.items() if hasattr(state, "items") else ():
            if isinstance(value, tensor_class):
                key = "%s:%s" % (name, dtype_name(value.dtype))
                counts[key] = counts.get(key, 0) + int(local(value).numel())
    return counts


def plain(value: Any, tensor_class: Any) -> Any:
    """A JSON value: numbers, booleans, strings, None and lists of them; anything else as its type's name."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, tensor_class):
        return float(local(value)) if value.numel() == 1 else "tensor%s" % (list(value.shape),)
    if isinstance(value, (list, tuple)):
        return [plain(inner, tensor_class) for inner in value]
    return type(value).__name__
