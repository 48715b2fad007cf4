"""The part of a parameter space that an advisor reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from engine.schema.base import Scalar


class AdvisedParameter(Protocol):
    """A searched parameter."""

    @property
    def mechanism(self) -> str:
        """Name in a configuration; an id of the mechanism table, or a free name."""
        ...

    @property
    def values(self) -> tuple[Scalar, ...]:
        """All canonical values."""
        ...


class AdvisedSpace(Protocol):
    """Searched parameters and their requirements; engine.task.space.ParameterSpace is one."""

    @property
    def parameters(self) -> Sequence[AdvisedParameter]:
        """Searched parameters."""
        ...

    def baseline(self) -> dict[str, Scalar]:
        """The unchanged job."""
        ...

    def violations(self, configuration: dict[str, Scalar]) -> list[str]:
        """Requirements that do not hold; empty for a valid configuration."""
        ...

    def normalise(self, configuration: dict[str, Scalar]) -> dict[str, Scalar]:
        """The same run with every parameter that has no effect set to its default."""
        ...
