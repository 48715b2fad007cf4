"""Turns the observations of one update into the fields of its record."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe.tensors import as_float, as_hash, as_int

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session
    from _infrarsi_probe.updates import Accumulator


def update_fields(session: Session, collected: Accumulator, index: int) -> dict[str, Any]:
    """Everything of an update record but its number and its clock readings.

    Each part stands for itself: where one fails its fields are missing and the agent is told why.
    """
    fields: dict[str, Any] = {"n": collected.n, "steps": collected.steps, "compiles": compiled_graphs()}
    parts = {
        "phases": lambda: _phases(session, collected),
        "loss": lambda: {"loss": [_unscaled(root, scale) for root, scale in collected.losses]},
        "gradients": lambda: _gradients(collected),
        "data": lambda: _data(session, collected),
        "hyper-parameters": lambda: _hyper(collected),
        "dtypes": lambda: _dtypes(collected),
        "memory": lambda: {"memory": session.memory.recent()},
        "integrity": lambda: _integrity(session),
    }
    for place, part in parts.items():
        try:
            fields.update(part())
        except Exception as error:
            session.report(place, error)
    if index == 0 and session.roots.moved is not None:
        fields["perturbed_elements"] = session.roots.moved
    return fields


def compiled_graphs() -> Optional[int]:
    """Unique graphs that torch.compile made so far; 0 while its compiler was never loaded."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    if dynamo is None:
        return 0
    counters = getattr(dynamo, "counters", None)
    return None if counters is None else int(counters["stats"].get("unique_graphs", 0))


def _data(session: Session, collected: Accumulator) -> dict[str, Any]:
    session.digest.resolve(collected)
    seen = collected.tokens > 0
    counted = collected.cross_entropy_count
    labels, source = (counted, "cross_entropy") if counted is not None else (collected.label_count, "labels")
    label_hash, hash_source = collected.label_hash, "labels"
    if label_hash is None:
        label_hash, hash_source = collected.cross_entropy_hash, "cross_entropy"
    return {
        "samples": collected.samples if seen else None,
        "tokens": collected.tokens if seen else None,
        "real_tokens": as_int(collected.real_tokens),
        "label_tokens": as_int(labels),
        "label_source": None if labels is None else source,
        "shapes": collected.shapes,
        "data_hash": as_hash(collected.data_hash),
        "label_hash": as_hash(label_hash),
        "label_hash_source": None if label_hash is None else hash_source,
    }


def _phases(session: Session, collected: Accumulator) -> dict[str, Any]:
    session.stopwatch.resolve(collected)
    ns: dict[str, Optional[int]] = dict(collected.ns)
    if not collected.n["forward"] + collected.n["other"] and not collected.ns["forward"]:
        ns["forward"] = None
    if not collected.n["backward"]:
        ns["backward"] = None
    if collected.opaque_step:
        ns["optimizer"] = None
    if not session.saw_data_loader:
        ns["data"] = None
    ns["communication"], source = session.communication.exposed(collected)
    return {"phase_ns": ns, "comm_source": source}


def _unscaled(root: Any, scale: Any) -> float:
    return as_float(root) if scale is None else as_float(root) / as_float(scale)


def _gradients(collected: Accumulator) -> dict[str, Any]:
    norm, source = _grad_norm(collected)
    return {
        "grad_norm": norm,
        "grad_norm_source": source,
        "grad_norm_replica": collected.norm_replica,
        "clip": [as_float(clip[0]) for clip in collected.clips],
        "clip_max": [as_float(clip[1]) for clip in collected.clips],
    }


def _grad_norm(collected: Accumulator) -> tuple[Optional[float], Optional[str]]:
    norms = [as_float(norm) for norm, _, kind, _ in collected.clips if kind == 2.0]
    if norms and len(norms) == len(collected.clips):
        separate = len(norms) <= max(1, len(collected.steps))
        norm = math.sqrt(sum(value * value for value in norms)) if separate else norms[-1]
        return norm, "clip_shard" if any(clip[3] for clip in collected.clips) else "clip"
    if not collected.squares:
        return None, None
    norm = math.sqrt(sum(as_float(square) for square in collected.squares))
    return norm, "foreach_shard" if collected.norm_is_shard else "foreach"


def _hyper(collected: Accumulator) -> dict[str, Any]:
    """One list of groups for each optimizer, empty for those that did not step."""
    last = max(collected.hyper, default=-1)
    return {"hyper": [collected.hyper.get(number, []) for number in range(last + 1)]}


def _dtypes(collected: Accumulator) -> dict[str, Any]:
    return {
        "autocast": sorted(collected.autocast),
        "grad_dtypes": sorted(collected.grad_dtypes),
        "param_dtypes": sorted(collected.param_dtypes),
    }


def _integrity(session: Session) -> dict[str, Any]:
    changed = session.integrity.changed_hooks()
    fields: dict[str, Any] = {"hooks_ok": not changed, "clocks_ok": not session.integrity.changed_clocks()}
    if changed:
        fields["hooks_changed"] = changed
    return fields
