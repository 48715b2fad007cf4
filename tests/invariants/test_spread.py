"""Ranks and machines of runs on several nodes."""

from __future__ import annotations

import pytest

from engine.invariants.check import check_invariants
from engine.invariants.context import InvariantContext
from engine.schema.evidence import HostReading, RunEvidence
from engine.schema.trial import InvariantStatus
from tests.invariants import builders as b


def status(baseline: RunEvidence, candidate: RunEvidence) -> InvariantStatus:
    """The verdict of allocation_identity."""
    results = check_invariants(baseline, candidate, InvariantContext(scope_findings=()))
    return next(result.status for result in results if result.name == "allocation_identity")


def two_nodes(*nodes: int, names: tuple[str, ...] = ("n1", "n2")) -> RunEvidence:
    """A run of four ranks on two machines; `nodes` says where each rank ran."""
    hosts = tuple(
        HostReading(
            node_rank=number,
            name=name,
            host=None,
            reported=True,
            longest_gap_s=0.1,
            cpus=None,
            devices=None,
            problem=None,
        )
        for number, name in enumerate(names)
    )
    run = b.healthy_run(ranks=4).model_copy(update={"nodes": 2, "ranks_per_node": 2, "hosts": hosts})
    return b.with_ranks(run, lambda rank: rank.model_copy(update={"node": nodes[rank.rank]}))


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        (two_nodes(0, 0, 1, 1), InvariantStatus.PASSED),
        (two_nodes(0, 1, 0, 1, names=("n3", "n4")), InvariantStatus.PASSED),
        (two_nodes(0, 0, 0, 1), InvariantStatus.FAILED),
        (two_nodes(0, 0, 0, 0), InvariantStatus.FAILED),
        (two_nodes(0, 0, 1, 1, names=("n1", "n1")), InvariantStatus.FAILED),
    ],
    ids=["same", "other machines", "lopsided", "one machine", "one machine twice"],
)
def test_ranks_are_spread_over_the_nodes_as_in_the_baseline(
    candidate: RunEvidence, expected: InvariantStatus
) -> None:
    """Which machines is the scheduler's choice; how many, and the ranks on each, is the allocation."""
    assert status(two_nodes(0, 0, 1, 1), candidate) is expected


def test_ranks_whose_node_disappears_are_lost_from_view() -> None:
    """A candidate that hides where its ranks ran fails, one whose baseline hid it too does not."""
    seen = two_nodes(0, 0, 1, 1)
    hidden = b.with_rank_fields(seen, node=None)
    assert status(seen, hidden) is InvariantStatus.FAILED
    assert status(hidden, hidden) is InvariantStatus.PASSED
