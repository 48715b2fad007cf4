"""The base of all records."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Scalar = bool | int | float | str
"""A canonical value of a mechanism."""


class Record(BaseModel):
    """Immutable, closed (an unknown key is an error), finite numbers only."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
