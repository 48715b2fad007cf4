"""Measurements as a landscape: a CSV with one row per configuration, and the TOML that explains it."""

from __future__ import annotations

import csv
import re
import statistics
from typing import Any

from recording.recorder import Measurement, Recorder
from recording.sample import key_of, toml_text

HEADING = "# Measured by record_landscape.py. Memory is the peak VmData of a rank, limited by RLIMIT_DATA.\n"
FOLDERS = re.compile(r"(?<![\w.])/(?:[\w.@+-]+/)+")  # a table that is shared names no folder of a machine
MEASURED = ["step_s", "cpu_s_per_update", "tokens_per_cpu_s", "tokens_per_s"]


def write_landscape(recorder: Recorder) -> None:
    """Write NAME.csv and NAME.toml beside the measurements."""
    baseline = recorder.sample.baseline()
    columns = [*baseline, *MEASURED, "peak_mem_gib", "status", "cost_s", "measurements", "message"]
    with (recorder.out / f"{recorder.name}.csv").open("w", newline="") as sink:
        writer = csv.DictWriter(sink, columns, lineterminator="\n")
        writer.writeheader()
        for row in rows(recorder):
            writer.writerow({k: str(v).lower() if isinstance(v, bool) else v for k, v in row.items()})
    landscape = {
        "name": recorder.name,
        "data": f"{recorder.name}.csv",
        "objective": "tokens_per_cpu_s",
        "direction": "max",
        "status": "status",
        "cost_s": "cost_s",
        "gpus": recorder.sample.ranks,
        "memory": "peak_mem_gib",
        "capacity_gib": recorder.sample.task["allocation"]["memory_limit_gib"],
        "experience": [],
        "baseline": baseline,
    }
    parameters = {
        f"parameters.{name}": {"mechanism": name, "type": column_type(list(recorder.sample.literals(name)))}
        for name in baseline
    }
    text = HEADING + toml_text({"landscape": landscape, **parameters})
    (recorder.out / f"{recorder.name}.toml").write_text(text)


def rows(recorder: Recorder) -> list[dict[str, Any]]:
    """One row per configuration: medians of its measurements, divided by how slow the machine was then."""
    measurements, members = recorder.measurements, dict[str, list[int]]()
    for i, measurement in enumerate(measurements):
        members.setdefault(key_of(measurement["configuration"]), []).append(i)
    return [
        row(recorder, group, {key: slowness(measurements, key) for key in MEASURED[:2]})
        for group in members.values()
    ]


def row(recorder: Recorder, group: list[int], slow: dict[str, list[float]]) -> dict[str, Any]:
    """The row of the measurements with these numbers; speeds stay empty where none succeeded."""
    measurements = recorder.measurements
    fine = [i for i in group if measurements[i]["status"] == "ok"]
    first = measurements[(fine or group)[0]]
    result = {
        **first["configuration"],
        "peak_mem_gib": max((measurements[i]["peak_mem_gib"] for i in fine), default=""),
        "status": first["status"],
        "cost_s": round(statistics.median(measurements[i]["cost_s"] for i in group), 2),
        "measurements": len(group),
        "message": FOLDERS.sub("…/", first["message"]),
    }
    for key, objective in (("step_s", "tokens_per_s"), ("cpu_s_per_update", "tokens_per_cpu_s")):
        if fine:
            seconds = statistics.median(measurements[i][key] / slow[key][i] for i in fine)
            result |= {
                key: round(seconds, 4),
                objective: round(recorder.sample.tokens_per_update / seconds, 1),
            }
    return result


def slowness(measurements: list[Measurement], key: str) -> list[float]:
    """For each measurement: the two nearest baseline anchors over the median of all anchors."""
    anchors = [i for i, m in enumerate(measurements) if m["purpose"] == "anchor" and m["status"] == "ok"]
    if not anchors:
        return [1.0] * len(measurements)
    middle = statistics.median(measurements[i][key] for i in anchors)
    nearest = (sorted(anchors, key=lambda a: abs(a - i))[:2] for i in range(len(measurements)))
    return [statistics.fmean(measurements[a][key] for a in pair) / middle for pair in nearest]


def column_type(values: list[Any]) -> str:
    """Numbers can be interpolated, names cannot."""
    return "int" if all(type(value) is int for value in values) else "categorical"
