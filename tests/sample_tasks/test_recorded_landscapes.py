"""The landscapes that travel with the samples."""

from __future__ import annotations

import csv
import tomllib
from typing import Any

import pytest

from tests.sample_tasks.projects import SAMPLES

LANDSCAPES = SAMPLES / "landscapes"


@pytest.fixture(params=["dense_gpt", "moe_gpt"])
def landscape(request: pytest.FixtureRequest) -> tuple[dict[str, Any], list[dict[str, str]], dict[str, Any]]:
    """Description, rows and the task file of a sample."""
    description = tomllib.loads((LANDSCAPES / f"{request.param}-cpu.toml").read_text())
    table = LANDSCAPES / description["landscape"]["data"]
    task = tomllib.loads((SAMPLES / request.param / "infrarsi.toml").read_text())
    return description, list(csv.DictReader(table.read_text().splitlines())), task


Landscape = tuple[dict[str, Any], list[dict[str, str]], dict[str, Any]]


def as_text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def test_a_landscape_has_at_least_200_distinct_configurations(landscape: Landscape) -> None:
    """No configuration has two rows, and there are enough of them for statistics."""
    description, rows, _ = landscape
    names = list(description["landscape"]["baseline"])
    keys = {tuple(row[name] for name in names) for row in rows}
    assert len(keys) == len(rows) >= 200


def test_the_baseline_is_a_measured_row(landscape: Landscape) -> None:
    """The unchanged job was measured, ran, and is not the fastest."""
    description, rows, _ = landscape
    about = description["landscape"]
    wanted = {name: as_text(value) for name, value in about["baseline"].items()}
    (baseline,) = [row for row in rows if all(row[name] == value for name, value in wanted.items())]
    assert baseline["status"] == "ok"
    best = max(float(row[about["objective"]]) for row in rows if row["status"] == "ok")
    assert best > 1.3 * float(baseline[about["objective"]])


def test_a_landscape_describes_its_task(landscape: Landscape) -> None:
    """Parameters, values and the memory limit are those of the sample's task file."""
    description, rows, task = landscape
    searched = {p["mechanism"]: p["values"] for p in task["parameters"] if "derived" not in p}
    assert set(searched) == set(description["parameters"]) == set(description["landscape"]["baseline"])
    for name, values in searched.items():
        assert {row[name] for row in rows} <= {as_text(value) for value in values}
    assert description["landscape"]["capacity_gib"] == task["allocation"]["memory_limit_gib"]


def test_failures_are_in_the_table(landscape: Landscape) -> None:
    """Rows that could not be trained stay, with their kind and without a speed."""
    _, rows, _ = landscape
    kinds = {row["status"] for row in rows}
    assert {"ok", "oom", "conflict"} <= kinds <= {"ok", "oom", "conflict", "error"}
    assert all((row["tokens_per_cpu_s"] != "") == (row["status"] == "ok") for row in rows)


def test_a_landscape_names_no_machine(landscape: Landscape) -> None:
    """Messages hold no absolute path."""
    _, rows, _ = landscape
    assert not [row for row in rows if "/home/" in row["message"] or "site-packages" in row["message"]]
