"""One mechanism of the table, typed and immutable."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from engine.schema.base import Scalar

Bottleneck = Literal["compute", "memory", "communication", "launch", "io", "host"]
SemanticRisk = Literal["none", "numerics", "locked"]
ValueType = Literal["choice", "bool", "int", "float"]
MeanSd = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Conflict:
    """A combination that a framework refuses, in words: `when` names the values of both sides."""

    mechanism: str
    when: str
    reason: str
    source: str


@dataclass(frozen=True, slots=True)
class Mechanism:
    """One optimisation, independent of any framework.

    Keys of the per-value mappings are canonical text (`canonical_text`).

    Attributes:
        values: Canonical values in the table's order; a float range is expanded by its step.
        default: The reference point of both priors.
        value_risk: Values whose risk differs from `semantic_risk`.
        requires: Preconditions in words, `mech:`, `hw:`, `pkg:`, `ranks:`, `host:`, `fabric:` … in front.
        prior_log_speedup: Value → (mean, sd) of log(throughput(value) / throughput(default)).
        prior_memory_ratio: Value → (mean, sd) of peak memory(value) / peak memory(default).
        relieves: Bottlenecks that the mechanism eases.
        costs: Resources that it uses up in return.
    """

    id: str
    number: int
    family: str
    name: str
    description: str
    value_type: ValueType
    values: tuple[Scalar, ...]
    unit: str | None
    default: Scalar
    semantic_risk: SemanticRisk
    value_risk: Mapping[str, SemanticRisk]
    invariant: str
    requires: tuple[str, ...]
    conflicts: tuple[Conflict, ...]
    prior_log_speedup: Mapping[str, MeanSd]
    prior_memory_ratio: Mapping[str, MeanSd]
    relieves: tuple[Bottleneck, ...]
    costs: tuple[Bottleneck, ...]
    speed_effect: str
    memory_effect: str
    applies_to: str
    evidence: str

    def risk(self, value: Scalar) -> SemanticRisk:
        """Semantic risk of one value."""
        return self.value_risk.get(self._text(value), self.semantic_risk)

    def log_speedup(self, value: Scalar) -> MeanSd | None:
        """Prior of a value against the table's default, natural log.

        Numbers between two rows are interpolated in log2 of the value, with the wider sd of the two.

        Returns:
            (mean, sd), or None where the table says nothing of this value.
        """
        return self._lookup(self.prior_log_speedup, value)

    def memory_ratio(self, value: Scalar) -> MeanSd | None:
        """Prior of peak memory(value) / peak memory(default), as `log_speedup` looks it up."""
        return self._lookup(self.prior_memory_ratio, value)

    def _text(self, value: Scalar) -> str:
        if self.value_type == "float" and isinstance(value, int) and not isinstance(value, bool):
            return canonical_text(float(value))
        if self.value_type == "int" and isinstance(value, float) and value.is_integer():
            return canonical_text(int(value))
        return canonical_text(value)

    def _lookup(self, prior: Mapping[str, MeanSd], value: Scalar) -> MeanSd | None:
        exact = prior.get(self._text(value))
        if exact is not None or self.value_type not in ("int", "float"):
            return exact
        if isinstance(value, bool | str) or not math.isfinite(value):
            return None
        return _interpolate(prior, float(value))


def canonical_text(value: Scalar) -> str:
    """The text under which a canonical value is filed: true, 8, 0.125, zero1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _interpolate(prior: Mapping[str, MeanSd], value: float) -> MeanSd | None:
    rows = sorted((float(text), entry) for text, entry in prior.items())
    for (low, (low_mean, low_sd)), (high, (high_mean, high_sd)) in itertools.pairwise(rows):
        if low < value < high:
            positive = low > 0
            share = math.log(value / low) / math.log(high / low) if positive else (value - low) / (high - low)
            return low_mean + share * (high_mean - low_mean), max(low_sd, high_sd)
    return None
