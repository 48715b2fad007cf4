"""Columns of the two Parquet files. polars is imported only where a frame is built or read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import IntegrityError

if TYPE_CHECKING:
    import polars

MECHANISMS_FILE = "mechanisms.parquet"
MAPPINGS_FILE = "mechanism_mappings.parquet"
_NEXT_STEP = (
    "reinstall infrarsi-tui; in a checkout run `python -m engine.mechanisms.build`, "
    "which builds it from experience_store/source"
)


def mechanism_schema() -> polars.Schema:
    """Columns of mechanisms.parquet; one row a mechanism, in the order of `number`."""
    import polars as pl

    conflict = pl.Struct([pl.Field(name, pl.String) for name in ("id", "when", "reason", "source")])
    prior = pl.Struct(
        {
            "value": pl.String,
            "log_speedup_mean": pl.Float64,
            "log_speedup_sd": pl.Float64,
            "memory_ratio_mean": pl.Float64,
            "memory_ratio_sd": pl.Float64,
        }
    )
    texts = pl.List(pl.String)
    columns: dict[str, pl.DataType | type[pl.DataType]] = {
        "id": pl.String,
        "number": pl.Int64,
        "family": pl.String,
        "name": pl.String,
        "description": pl.String,
        "value_type": pl.String,
        "unit": pl.String,
        "default": pl.String,
        "semantic_risk": pl.String,
        "value_risk": pl.List(pl.Struct({"value": pl.String, "risk": pl.String})),
        "invariant": pl.String,
        "requires": texts,
        "conflicts": pl.List(conflict),
        "priors": pl.List(prior),
        "relieves": texts,
        "costs": texts,
        "speed_effect": pl.String,
        "memory_effect": pl.String,
        "applies_to": pl.String,
        "evidence": pl.String,
    }
    return pl.Schema(columns)


def mapping_schema() -> polars.Schema:
    """Columns of mechanism_mappings.parquet; one row a key of a framework, in the source's order."""
    import polars as pl

    names = (
        "mechanism_id",
        "framework",
        "framework_version",
        "key",
        "key_kind",
        "value_template",
        "verified",
        "notes",
    )
    return pl.Schema([(name, pl.String) for name in names])


def read_table(path: Path, schema: polars.Schema) -> polars.DataFrame:
    """Read a shipped table and check its columns.

    Raises:
        IntegrityError: the file is missing, unreadable or has other columns; names it and the next step.
    """
    import polars as pl

    try:
        frame = pl.read_parquet(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        reason = "the file is missing" if not path.exists() else f"the file cannot be read: {error}"
        raise IntegrityError(reason, file=str(path), hint=_NEXT_STEP) from error
    if frame.schema != schema:
        wrong = sorted(
            name for name in {*schema, *frame.schema} if schema.get(name) != frame.schema.get(name)
        )
        raise IntegrityError(
            "the table has other columns than this version reads",
            file=str(path),
            key=", ".join(wrong) or None,
            rule=f"columns in this order: {', '.join(schema)}",
            hint=_NEXT_STEP,
        )
    return frame


def row_error(path: Path, row: str, reason: str) -> IntegrityError:
    """The error for a row whose content breaks a rule."""
    return IntegrityError(reason, file=str(path), key=row, hint=_NEXT_STEP)
