"""The model's parameters with their shards or replicas put together."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from engine.schema.evidence import ParameterRecord, SignatureRecord
from engine.schema.run_view import HASH_MODULUS, RunView


@dataclass(frozen=True)
class Parameter:
    """One whole parameter.

    hashes: the possible hashes of the whole: the sum over ranks, and the sum over distinct parts (replicas
    count once); empty = not seen. norm: Euclidean norm; None = not seen.
    replicas_differ: replicated at the start, not equal here.
    """

    name: str
    shape: tuple[int, ...]
    numel: int
    dtype: str | None
    trainable: bool | None
    hashes: frozenset[int]
    norm: float | None
    replicated: bool
    replicas_differ: bool = False

    def same_content(self, other: Parameter) -> bool | None:
        """Whether the bits agree; None where either was not seen."""
        if not self.hashes or not other.hashes:
            return None
        return bool(self.hashes & other.hashes)


@dataclass(frozen=True)
class ModelState:
    """All parameters of a run at its start or end, by name, and the groups of names that share storage."""

    parameters: dict[str, Parameter]
    ties: frozenset[frozenset[str]]


def start_state(view: RunView) -> ModelState | str:
    """The state at the first training forward, or the reason why it cannot be seen."""
    return _state([rank.start_signature for rank in view.ranks], view, frozenset())


def end_state(view: RunView, start: ModelState) -> ModelState | str:
    """The state after the last update, or the reason why it cannot be seen."""
    replicated = frozenset(name for name, parameter in start.parameters.items() if parameter.replicated)
    return _state([rank.end_signature for rank in view.ranks], view, replicated)


def _state(
    signatures: list[SignatureRecord | None], view: RunView, replicated: frozenset[str]
) -> ModelState | str:
    seen = [signature for signature in signatures if signature is not None]
    if not seen or len(seen) < len(signatures):
        return view.why_unseen("signature")
    parts: dict[str, list[ParameterRecord]] = {}
    links: set[tuple[str, str]] = set()
    for signature in seen:
        for record in signature.parameters:
            if record.tied_to is not None:
                links.add((record.name, record.tied_to))
            else:
                parts.setdefault(record.name, []).append(record)
    if not parts:
        reason = next((signature.unavailable for signature in seen if signature.unavailable), None)
        return reason or "the signature holds no parameter"
    whole = {name: _whole(name, records, name in replicated) for name, records in parts.items()}
    return ModelState(parameters=whole, ties=_groups(links))


def _whole(name: str, records: list[ParameterRecord], was_replicated: bool) -> Parameter:
    first = records[0]
    parts = [record for record in records if not record.sharded or record.replica in (0, None)] or records
    known = [record.content_hash for record in parts if record.content_hash is not None]
    squares = [record.sumsq for record in parts if record.sumsq is not None]
    complete = len(known) == len(parts)
    replicated = complete and len(set(known)) == 1 and not first.sharded
    shapes = {record.shape for record in records}
    trainable = {record.trainable for record in records}
    return Parameter(
        name=name,
        shape=first.shape if len(shapes) == 1 else (-1,),
        numel=first.numel,
        dtype="+".join(sorted({record.dtype or "unknown" for record in records})),
        trainable=None if None in trainable else True in trainable,
        hashes=_possible_hashes(known) if complete else frozenset(),
        norm=_norm(squares, replicated or was_replicated) if len(squares) == len(parts) else None,
        replicated=replicated,
        replicas_differ=complete and was_replicated and not replicated,
    )


def _possible_hashes(parts: list[int]) -> frozenset[int]:
    return frozenset({sum(set(parts)) % HASH_MODULUS, sum(parts) % HASH_MODULUS})


def _norm(squares: list[float], replicated: bool) -> float | None:
    if any(value < 0 for value in squares):
        return None
    return math.sqrt(math.fsum(squares) / len(squares)) if replicated else math.sqrt(math.fsum(squares))


def _groups(links: set[tuple[str, str]]) -> frozenset[frozenset[str]]:
    """Connected components of the tie relation."""
    groups: list[set[str]] = []
    for pair in links:
        touching = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if not group & set(pair)]
        groups.append(set(pair).union(*touching))
    return frozenset(frozenset(group) for group in groups)


def end_norm_gap(start: Parameter | None, old: Parameter, new: Parameter) -> float | None:
    """Relative difference of a parameter's norm at the ends of two runs that began at `start`.

    Returns:
        None where a norm was not seen, and for a parameter that starts at about zero, such as a bias: it is
        as large as its noise.
    """
    if old.norm is None or new.norm is None:
        return None
    first = start.norm if start is not None and start.norm is not None else 0.0
    if first <= 0.5 * old.norm:
        return None
    scale = max(old.norm, first)
    return abs(old.norm - new.norm) / scale if scale > 0 else 0.0


def parameter_class(name: str) -> str:
    """The name with every number replaced: layers.3.attn.weight → layers.*.attn.weight."""
    return re.sub(r"\d+", "*", name)
