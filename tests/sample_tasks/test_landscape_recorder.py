"""What the landscape recorder plans and writes."""

from __future__ import annotations

import csv
import math
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.sample_tasks.projects import tiny_copy

from recording.landscape import write_landscape  # isort: skip  (sample_tasks is put on the path above)
from recording.plan import Plan  # isort: skip
from recording.recorder import Recorder  # isort: skip
from recording.sample import Configuration, Sample, key_of  # isort: skip

COSTS = {"activation_recompute": {"none": 0.6, "selective": 0.8}, "compute_dtype": {"bf16": 0.7}}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    """A recorder that has measured nothing."""
    return Recorder(Sample.load(tiny_copy("dense_gpt", tmp_path / "project")), tmp_path, timeout_s=1)


def measured(configuration: Configuration, purpose: str, slowness: float = 1.0) -> dict[str, Any]:
    """A measurement from a product of costs; flex attention fails."""
    row = {
        "configuration": configuration,
        "purpose": purpose,
        "cost_s": 5.0,
        "peak_mem_gib": 0.5,
        "message": "",
    }
    if configuration["attention_backend"] == "flex":
        return {**row, "status": "conflict", "message": "NotImplementedError"}
    factor = math.prod(cost.get(configuration[name], 1.0) for name, cost in COSTS.items())
    return {**row, "status": "ok", "step_s": slowness * factor, "cpu_s_per_update": 2 * slowness * factor}


def carry_out(recorder: Recorder, wanted: int) -> list[Configuration]:
    """Follow the plan to its end."""
    order = []
    for configuration, purpose in Plan(recorder, wanted, seed=3).configurations():
        recorder.measurements.append(measured(configuration, purpose))
        order.append(configuration)
    return order


def test_plan_covers_single_changes_and_the_optimum(recorder: Recorder) -> None:
    """Single changes come first, nothing twice, and everything around the best one is measured."""
    order = carry_out(recorder, wanted=80)
    keys = [key_of(configuration) for configuration in order]
    singles = recorder.sample.neighbours(recorder.sample.baseline())
    assert len(keys) == len(set(keys)) >= 80
    assert order[0] == recorder.sample.baseline()
    assert set(keys[1 : 1 + len(singles)]) == {key_of(c) for c in singles}
    best = min((m for m in recorder.measurements if m["status"] == "ok"), key=lambda m: m["step_s"])
    assert best["step_s"] == pytest.approx(0.6 * 0.7)
    assert {key_of(c) for c in recorder.sample.neighbours(best["configuration"])} <= set(keys)


def test_plan_goes_on(recorder: Recorder) -> None:
    """A recording that was interrupted repeats nothing."""
    first = carry_out(recorder, wanted=20)
    second = carry_out(recorder, wanted=60)
    assert not {key_of(c) for c in first} & {key_of(c) for c in second}


def test_parameters_without_meaning_are_not_varied(recorder: Recorder) -> None:
    """Without recomputation the checkpoint variant makes no second row."""
    change = {"activation_recompute": "none", "checkpoint_variant": "reentrant"}
    form = recorder.sample.normal_form({**recorder.sample.baseline(), **change})
    assert form["checkpoint_variant"] == "non_reentrant"


def test_trial_files(recorder: Recorder, tmp_path: Path) -> None:
    """A configuration is written as literals at its bindings; environment values apart."""
    change = {"dp_shard_stage": "zero3", "micro_batch_size": 4, "allocator_config": "keep"}
    environment = recorder.sample.write({**recorder.sample.baseline(), **change}, tmp_path / "trial.toml")
    written = tomllib.loads((tmp_path / "trial.toml").read_text())
    assert written["performance"]["data_parallel"] == "fsdp"
    assert written["performance"]["micro_batch"] == 4
    assert written["model"] == recorder.sample.workload["model"]
    assert list(environment) == ["GLIBC_TUNABLES"]


def test_landscape_files(recorder: Recorder) -> None:
    """Every configuration is one row; the TOML names its columns, and its baseline is a row."""
    carry_out(recorder, wanted=50)
    write_landscape(recorder)
    about = tomllib.loads((recorder.out / "dense_gpt-cpu.toml").read_text())
    landscape = about["landscape"]
    with (recorder.out / landscape["data"]).open(newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == len({key_of(m["configuration"]) for m in recorder.measurements})
    named = {landscape[key] for key in ("objective", "memory", "status", "cost_s")}
    assert named | set(about["parameters"]) <= set(table[0])
    assert set(landscape["baseline"]) == set(about["parameters"])
    baseline = {name: str(value).lower() for name, value in landscape["baseline"].items()}
    rows = [row for row in table if all(row[name] == value for name, value in baseline.items())]
    assert [row["status"] for row in rows] == ["ok"]
    assert {row["status"] for row in table} == {"ok", "conflict"}
    assert all((row["tokens_per_cpu_s"] == "") == (row["status"] != "ok") for row in table)


def test_drift_is_taken_out(recorder: Recorder) -> None:
    """A machine that becomes twice as slow halfway changes no row: the anchors around a row show it."""
    baseline = recorder.sample.baseline()
    faster = {**baseline, "compute_dtype": "bf16"}
    for slowness in (1.0, 1.0, 2.0, 2.0):
        recorder.measurements.append(measured(baseline, "anchor", slowness))
        recorder.measurements.append(measured(baseline, "anchor", slowness))
        recorder.measurements.append(measured(faster, "repeat", slowness))
    write_landscape(recorder)
    with (recorder.out / "dense_gpt-cpu.csv").open(newline="") as file:
        steps = {row["compute_dtype"]: float(row["step_s"]) for row in csv.DictReader(file)}
    assert steps["bf16"] / steps["fp32"] == pytest.approx(0.7, rel=1e-3)
