"""What result.json says of nodes and of the scheduler's job, and what a forged one may not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from engine.schema.evidence import RunEvidence, SlurmIdentity
from engine.trial.evidence import read_evidence
from tests.evidence import folders

NODES = [
    {
        "node_rank": 1,
        "name": "n2",
        "host": "n2.x",
        "reported": False,
        "longest_gap_s": None,
        "problem": "gone",
    },
    {"node_rank": 0, "name": "n1", "host": "n1.x", "reported": True, "longest_gap_s": 0.4, "cpus": 16},
]


def read(folder: Path, asked: int = 2, /, **changes: Any) -> RunEvidence:
    """The evidence of a healthy folder whose result.json holds these values too."""
    result = folders.result() | changes
    for entry in result["ranks"]:
        entry["node"] = entry["rank"]
    folders.write(folder)
    (folder / "result.json").write_text(json.dumps(result))
    plan = folders.plan(folder, ranks=1).model_copy(update={"nodes": asked})
    return read_evidence(folder, plan)


def test_nodes_are_read_by_their_rank(tmp_path: Path) -> None:
    """Names, gaps and problems arrive in order; each rank knows its node."""
    evidence = read(tmp_path, 2, **{"nodes": NODES, "slurm": {"job_id": 12, "step_id": "0", "restarts": 1}})
    assert evidence.node_names == ("n1", "n2")
    assert [host.reported for host in evidence.hosts] == [True, False]
    assert (evidence.hosts[0].longest_gap_s, evidence.hosts[1].problem) == (0.4, "gone")
    assert [rank.node for rank in evidence.ranks] == [0, 1]
    assert evidence.slurm == SlurmIdentity(job_id="12", step_id="0", restarts=1)
    assert evidence.notes == ()


def test_a_result_without_nodes_is_one_of_its_host(tmp_path: Path) -> None:
    """An agent that names no node ran on the host that it names; of several nodes nothing is known."""
    assert read(tmp_path, 1).node_names == ("node",)
    assert read(tmp_path, 2).node_names == ()
    assert read(tmp_path, 2).slurm is None


@pytest.mark.parametrize("nodes", ["n1", [1, None], [{"name": "n1"}], [{"node_rank": 0}, {"node_rank": 0}]])
def test_broken_nodes_are_notes(tmp_path: Path, nodes: object) -> None:
    """Whatever stands there, the run is read and the problem is named."""
    evidence = read(tmp_path, 2, **{"nodes": nodes})
    assert evidence.ended == "exited"
    assert any("nodes" in note for note in evidence.notes)


def test_ranks_of_two_nodes_are_put_on_one_clock(tmp_path: Path) -> None:
    """Agents count from their own start: across nodes the last update is told in unix time."""
    evidence = read(tmp_path, 2)
    rank = evidence.ranks[0]
    assert rank.agent is not None
    assert rank.hello is not None
    seen = rank.agent.model_copy(update={"last_update_ns": 6_000_000_000})
    rank = rank.model_copy(update={"agent": seen})
    assert rank.hello is not None
    assert evidence.last_update_ns(rank) == 1_700_000_004_000_000_000
    assert evidence.model_copy(update={"nodes": 1}).last_update_ns(rank) == 6_000_000_000
