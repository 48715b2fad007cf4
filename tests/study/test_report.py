"""What a finished study says: for programs, and for people who will pass it on."""

from __future__ import annotations

import dataclasses
import getpass
import json
import re
import socket
import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.journal.summary import summarise
from engine.schema.job import Loss, SchedulerFacts
from engine.study import run_study
from tests.study.studies import Cluster, engine, read
from tests.study.surface import KNOBS

Number = (int, float)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A finished study with failures of all sorts in it."""
    made = Cluster(tmp_path_factory.mktemp("reported"))
    made.executor.lost = lambda trial_id: trial_id == "t002"
    made.run(trials=12)
    return made


@pytest.fixture(scope="module")
def report(cluster: Cluster) -> dict[str, Any]:
    """report.json."""
    value = json.loads((cluster.root / "report.json").read_text())
    assert isinstance(value, dict)
    return value


def test_top_level_keys(report: dict[str, Any]) -> None:
    """The keys that scripts read exist and have their types."""
    assert isinstance(report["study_dir"], str)
    assert report["state"] in ("reporting", "done")
    assert isinstance(report["trials"], list)
    assert set(report["gpu_hours"]) >= {"total", "succeeded", "failed", "cancelled", "idle", "verification"}
    assert all(isinstance(hours, Number) for hours in report["gpu_hours"].values())


def test_trials(report: dict[str, Any]) -> None:
    """Every trial names its candidate, its outcome and its cost; null where there is no number."""
    outcomes = set()
    for trial in report["trials"]:
        assert isinstance(trial["id"], str)
        assert isinstance(trial["origin"], str)
        assert set(trial["configuration"]) == set(KNOBS)
        assert trial["patches"] == []
        outcomes.add(trial["outcome"])
        assert trial["speedup"] is None or isinstance(trial["speedup"], Number)
        assert isinstance(trial["cost_gpu_hours"], Number)
        if trial["outcome"] in ("failed", "void"):
            assert trial["speedup"] is None
            assert isinstance(trial["attribution"]["kind"], str)
            assert isinstance(trial["attribution"]["cause"], str)
    assert {"completed", "failed", "void"} <= outcomes


def test_attributions(report: dict[str, Any]) -> None:
    """An attribution holds all keys of the contract, null where the text has no number."""
    keys = {"kind", "blame_candidate", "cause", "rank", "evidence", "implicated", "tried_gib", "free_gib"}
    keys |= {"capacity_gib", "allocated_gib", "reserved_gib", "memory_gap_gib"}
    keys |= {"required_bytes", "limit_bytes"}
    found = [trial["attribution"] for trial in report["trials"] if trial["attribution"]]
    assert found
    for attribution in found:
        assert keys <= set(attribution)
        assert all({"line", "text"} <= set(line) for line in attribution["evidence"])
    memory = next(each for each in found if each["kind"] == "oom_host")
    assert memory["blame_candidate"] is True
    assert memory["required_bytes"] > memory["limit_bytes"]


def test_best_and_baseline(report: dict[str, Any]) -> None:
    """The winner carries its interval; the baseline its phases."""
    best = report["best"]
    assert best["verified"] is True
    assert set(best["candidate"]) == {"configuration", "patches"}
    low, high = best["speedup_ci"]
    assert 1.0 < low <= best["speedup"] <= high
    baseline = report["baseline"]
    assert isinstance(baseline["step_time_s"], Number)
    assert isinstance(baseline["tokens_per_s"], Number)
    assert baseline["mfu"] is None or isinstance(baseline["mfu"], Number)
    assert isinstance(baseline["peak_memory_gib"], Number)
    assert isinstance(baseline["noise_pct"], Number)
    assert set(baseline["phases"]) == {"forward", "backward", "optimizer", "communication", "data"}


def test_costs_add_up(report: dict[str, Any]) -> None:
    """The total is the sum of its parts and of all trials."""
    spent = dict(report["gpu_hours"])
    total = spent.pop("total")
    assert total == pytest.approx(sum(spent.values()))
    assert total == pytest.approx(sum(trial["cost_gpu_hours"] for trial in report["trials"]))


def test_sixteen_invariants_of_the_winner(report: dict[str, Any]) -> None:
    """Every invariant has a verdict, and a skipped one a reason."""
    verdict = report["verification"][0]
    assert len(verdict["invariants"]) == 16
    assert all(each["status"] in ("passed", "skipped") for each in verdict["invariants"])
    assert all(each["reason"] for each in verdict["invariants"] if each["status"] == "skipped")


@pytest.mark.parametrize("name", ["report.md", "report.json", "winner.toml"])
def test_nothing_private_in_the_report(cluster: Cluster, name: str) -> None:
    """No absolute path, host or user: the files may be passed on as they are."""
    text = (cluster.root / name).read_text()
    assert str(cluster.folder) not in text
    assert socket.gethostname() not in text
    assert "node-of-nobody" not in text
    assert not re.search(r"(?<![\w.])/(?:home|root|tmp|dev|work|var|usr)/", text)
    if getpass.getuser() not in ("root", "user"):
        assert getpass.getuser() not in text


def test_winner_file(cluster: Cluster, report: dict[str, Any]) -> None:
    """winner.toml holds the verified configuration."""
    winner = tomllib.loads((cluster.root / "winner.toml").read_text())
    assert winner["configuration"] == report["best"]["candidate"]["configuration"]


def test_writing_again_changes_nothing(cluster: Cluster) -> None:
    """Resuming a finished study runs nothing and writes the same report."""
    before = {name: (cluster.root / name).read_text() for name in ("report.md", "winner.toml")}
    jobs = list(cluster.executor.submitted)
    cluster.go()
    assert {name: (cluster.root / name).read_text() for name in before} == before
    assert cluster.executor.submitted == jobs


def test_status_of_a_running_study(tmp_path: Path) -> None:
    """At every moment the summary is valid JSON; what does not exist yet is null."""
    cluster = Cluster(tmp_path)
    cluster.start(trials=2)
    first = summarise(read(cluster.root), "study")
    assert first["state"] == "initialization"
    assert first["best"] is None
    assert first["baseline"] is None
    seen: list[str] = []

    def look(*_: object) -> None:
        value = json.loads(json.dumps(summarise(read(cluster.root), "study"), allow_nan=False))
        seen.append(value["state"])
        assert value["trials"] or value["state"] in ("initialization", "diagnosis")

    with engine(cluster.root, cluster.executor, cluster.clock, look) as study:
        run_study(study)
    assert list(dict.fromkeys(seen)) == ["initialization", "diagnosis", "search", "reporting", "done"]


def test_nodes_and_queue_of_a_cluster(tmp_path: Path) -> None:
    """The report tells how each node behaved and how long the queue was, under pseudonyms."""
    cluster = Cluster(tmp_path)
    cluster.executor.queue_s = 30.0
    cluster.executor.losses = lambda trial_id: Loss.NODE_FAILED if trial_id == "t001" else None
    cluster.executor.facts = lambda trial_id, submitted, ends: SchedulerFacts(
        job_id=trial_id, state="NODE_FAIL", nodes=("beta7",), source="sacct", as_of=ends
    )
    cluster.executor.shapes = lambda trial_id, run: dataclasses.replace(
        run, nodes=("alpha7",) if int(trial_id[1:]) % 2 else ("beta7",)
    )
    cluster.run(trials=2, executor="slurm")
    text = (cluster.root / "report.md").read_text()
    assert "## Nodes" in text
    assert "Median wait in the queue: 30 s" in text
    nodes = json.loads((cluster.root / "report.json").read_text())["nodes"]
    assert [node["name"] for node in nodes] == ["node-1", "node-2"]
    assert [node["voids"] for node in nodes] == [0, 1]
    assert nodes[0]["slowdown"]["runs"] >= 3
    for name in ("report.md", "report.json"):
        assert not re.search("alpha7|beta7", (cluster.root / name).read_text())
