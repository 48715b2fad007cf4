"""Builds the two Parquet files from their reviewed sources: `python -m engine.mechanisms.build`.

Sources, in experience_store/source: mechanisms.json (values, priors, conflicts), bottlenecks.toml (what each
relieves and costs), mechanism_mappings.tsv (framework keys). The same sources give the same bytes.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.durable import explain_disk_errors, sync_folder
from engine.errors import IntegrityError
from engine.mechanisms.columns import MAPPINGS_FILE, MECHANISMS_FILE, mapping_schema, mechanism_schema
from engine.mechanisms.location import store_folder

if TYPE_CHECKING:
    import polars


def build(folder: Path) -> tuple[Path, Path]:
    """Write both tables of a store folder from its `source` folder.

    Raises:
        IntegrityError: a source is missing or broken, or the sources disagree.
        InfrastructureError: the folder cannot be written.
    """
    mechanisms, mappings = folder / MECHANISMS_FILE, folder / MAPPINGS_FILE
    _write(mechanisms, mechanisms_frame(folder / "source"))
    _write(mappings, mappings_frame(folder / "source"))
    return mechanisms, mappings


def mechanisms_frame(source: Path) -> polars.DataFrame:
    """mechanisms.parquet as a frame.

    Raises:
        IntegrityError: a source is missing or broken, or the two do not speak of the same mechanisms.
    """
    import polars as pl

    entries: list[dict[str, Any]] = json.loads(_source_text(source / "mechanisms.json"))
    bottlenecks = tomllib.loads(_source_text(source / "bottlenecks.toml"))
    unmatched = {entry["id"] for entry in entries} ^ set(bottlenecks)
    if unmatched:
        raise IntegrityError(
            "the sources do not speak of the same mechanisms",
            file=str(source / "bottlenecks.toml"),
            key=", ".join(sorted(unmatched)),
            rule="one line for each mechanism of mechanisms.json",
        )
    entries.sort(key=lambda entry: entry["number"])
    rows = [_row(entry, bottlenecks[entry["id"]]) for entry in entries]
    return pl.DataFrame(rows, schema=mechanism_schema())


def mappings_frame(source: Path) -> polars.DataFrame:
    """mechanism_mappings.parquet as a frame.

    Raises:
        IntegrityError: the source is missing.
    """
    import polars as pl

    text = _source_text(source / "mechanism_mappings.tsv")
    rows = list(csv.DictReader(io.StringIO(text, newline=""), delimiter="\t", quoting=csv.QUOTE_NONE))
    return pl.DataFrame(rows, schema=mapping_schema())


def _row(entry: Mapping[str, Any], bottleneck: Mapping[str, list[str]]) -> dict[str, Any]:
    values = entry["values"]
    plain = ("id", "number", "family", "name", "description", "value_type", "default", "semantic_risk")
    texts = ("invariant", "requires", "conflicts", "speed_effect", "memory_effect", "applies_to", "evidence")
    return {
        **{name: entry[name] for name in (*plain, *texts)},
        "unit": values.get("unit") if isinstance(values, dict) else None,
        "value_risk": [{"value": value, "risk": risk} for value, risk in entry["value_risk"].items()],
        "priors": [
            {
                "value": value,
                "log_speedup_mean": float(mean),
                "log_speedup_sd": float(sd),
                "memory_ratio_mean": float(entry["prior_memory_ratio"][value][0]),
                "memory_ratio_sd": float(entry["prior_memory_ratio"][value][1]),
            }
            for value, (mean, sd) in entry["prior_log_speedup"].items()
        ],
        "relieves": bottleneck["relieves"],
        "costs": bottleneck["costs"],
    }


def _source_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise IntegrityError(
            f"the source cannot be read: {error.strerror}",
            file=str(path),
            hint="restore the file from version control, then run `python -m engine.mechanisms.build` again",
        ) from error


def _write(path: Path, frame: polars.DataFrame) -> None:
    buffer = io.BytesIO()
    frame.write_parquet(buffer, compression="zstd", statistics=False)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explain_disk_errors(path):
        try:
            with temporary.open("xb") as stream:
                stream.write(buffer.getvalue())
                stream.flush()
                os.fsync(stream.fileno())
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def main() -> int:
    """Build the shipped tables and say where they are."""
    for path in build(store_folder()):
        sys.stdout.write(f"{path}: {path.stat().st_size} bytes\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
