"""Reading the table of mechanisms."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from engine.errors import UsageError
from engine.mechanisms.columns import MECHANISMS_FILE, mechanism_schema, read_table, row_error
from engine.mechanisms.location import store_folder
from engine.mechanisms.record import Bottleneck, Conflict, Mechanism, SemanticRisk, ValueType
from engine.schema.base import Scalar


def load_mechanisms(path: Path | None = None) -> Mapping[str, Mechanism]:
    """The table, by mechanism id, in the table's order; read once a process.

    Args:
        path: Another mechanisms.parquet; default: the shipped one.

    Raises:
        IntegrityError: the file is missing or does not hold what it must; names it and the next step.
    """
    return _load(path or store_folder() / MECHANISMS_FILE)


def find_mechanism(mechanisms: Mapping[str, Mechanism], mechanism_id: str) -> Mechanism:
    """A mechanism of the table.

    Raises:
        UsageError: there is none of this id; the hint names the nearest.
    """
    try:
        return mechanisms[mechanism_id]
    except KeyError:
        nearest = nearest_ids(mechanisms, mechanism_id)
        hint = (
            f"did you mean {' or '.join(nearest)}?" if nearest else "`infrarsi mechanisms list` shows all ids"
        )
        raise UsageError("no such mechanism", value=mechanism_id, hint=hint) from None


def nearest_ids(known: Iterable[str], wanted: str, limit: int = 3) -> tuple[str, ...]:
    """Known ids that look like the wanted one, the best first; empty when none does."""
    spelling = wanted.strip().lower().replace("-", "_").replace(" ", "_")
    return tuple(get_close_matches(spelling, list(known), n=limit, cutoff=0.6))


@functools.cache
def _load(path: Path) -> Mapping[str, Mechanism]:
    table: dict[str, Mechanism] = {}
    for row in read_table(path, mechanism_schema()).iter_rows(named=True):
        name = str(row["id"])
        if name in table:
            raise row_error(path, name, "the mechanism appears twice")
        try:
            table[name] = _mechanism(row)
        except (ValueError, TypeError, KeyError) as error:
            raise row_error(path, name, f"the row breaks a rule of the table: {error}") from error
    if not table:
        raise row_error(path, "id", "the table is empty")
    for mechanism in table.values():
        for conflict in mechanism.conflicts:
            if conflict.mechanism not in table:
                raise row_error(
                    path, mechanism.id, f"conflict with an unknown mechanism {conflict.mechanism!r}"
                )
    return MappingProxyType(table)


def _mechanism(row: Mapping[str, Any]) -> Mechanism:
    value_type = _one_of(row["value_type"], get_args(ValueType), "value_type")
    priors = row["priors"]
    values = tuple(_value(value_type, entry["value"]) for entry in priors)
    default = _value(value_type, row["default"])
    if default not in values:
        raise ValueError(f"default {default!r} is none of its values")
    return Mechanism(
        id=row["id"],
        number=row["number"],
        family=row["family"],
        name=row["name"],
        description=row["description"],
        value_type=value_type,
        values=values,
        unit=row["unit"],
        default=default,
        semantic_risk=_one_of(row["semantic_risk"], get_args(SemanticRisk), "semantic_risk"),
        value_risk=MappingProxyType({entry["value"]: _risk(entry["risk"]) for entry in row["value_risk"]}),
        invariant=row["invariant"],
        requires=tuple(row["requires"]),
        conflicts=tuple(
            Conflict(mechanism=c["id"], when=c["when"], reason=c["reason"], source=c["source"])
            for c in row["conflicts"]
        ),
        prior_log_speedup=_prior(priors, "log_speedup"),
        prior_memory_ratio=_prior(priors, "memory_ratio"),
        relieves=_bottlenecks(row["relieves"], "relieves"),
        costs=_bottlenecks(row["costs"], "costs"),
        speed_effect=row["speed_effect"],
        memory_effect=row["memory_effect"],
        applies_to=row["applies_to"],
        evidence=row["evidence"],
    )


def _value(value_type: str, text: str) -> Scalar:
    if value_type == "bool":
        return {"true": True, "false": False}[text]
    if value_type == "int":
        return int(text)
    return float(text) if value_type == "float" else text


def _prior(entries: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, tuple[float, float]]:
    prior = {entry["value"]: (entry[f"{name}_mean"], entry[f"{name}_sd"]) for entry in entries}
    for value, (mean, sd) in prior.items():
        if not (math.isfinite(mean) and math.isfinite(sd) and sd >= 0):
            raise ValueError(f"{name} of {value!r} is not (finite mean, sd >= 0)")
        if name == "memory_ratio" and mean <= 0:
            raise ValueError(f"memory ratio of {value!r} is not positive")
    return MappingProxyType(prior)


def _risk(text: str) -> SemanticRisk:
    risk: SemanticRisk = _one_of(text, get_args(SemanticRisk), "risk")
    return risk


def _bottlenecks(texts: Iterable[str], column: str) -> tuple[Bottleneck, ...]:
    return tuple(_one_of(text, get_args(Bottleneck), column) for text in texts)


def _one_of(text: str, allowed: tuple[str, ...], column: str) -> Any:
    if text not in allowed:
        raise ValueError(f"{column} {text!r} is none of {', '.join(allowed)}")
    return text
