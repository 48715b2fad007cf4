"""What the result says when a node did not report: the node's fault, or something else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.agent.head import Head
from slurm.agent.lead import Lead
from slurm.agent.loop import Loop
from slurm.agent.merge import final_end, node_entries, rank_entries
from slurm.agent.node import identify
from slurm.agent.plan import load_plan
from slurm.agent.preflight import Examination
from slurm.agent.remote import RemoteNode, describe, reported_ranks
from slurm.agent.station import Station
from slurm.agent.stopping import StopRequest
from tests.slurm.agents import step_environment
from tests.slurm.trial_folder import make_wide_trial

S = 1_000_000_000


@pytest.fixture
def lead(tmp_path: Path) -> Iterator[tuple[Lead, StopRequest]]:
    """The head of a trial of two nodes whose node 1 was last heard at 100 s and is gone."""
    make_wide_trial(tmp_path / "t", "normal")
    plan = load_plan(tmp_path / "t" / "spec.json")
    loop, stop = Loop(), StopRequest(plan.folder)
    with contextlib.closing(loop), contextlib.closing(Head(loop, plan.token, 2)) as head:
        station = Station(plan, identify(step_environment(0, 2)), loop)
        head.nodes[1].heard_ns, head.nodes[1].lost = 100 * S, "gone"
        yield Lead(station, head, stop, Examination()), stop
        station.trial.listener.close()


@pytest.mark.parametrize(
    ("ended", "failed_ns", "expected"),
    [
        ("exited", None, "node_lost"),
        ("exited", 99 * S, "node_lost"),
        ("exited", 101 * S, "node_lost"),
        ("exited", 97 * S, "exited"),
        ("update_timeout", 200 * S, "node_lost"),
        ("update_timeout", 97 * S, "update_timeout"),
        ("start_timeout", 97 * S, "start_timeout"),
        ("cancelled", None, "node_lost"),
        ("node_lost", None, "node_lost"),
        ("preflight_failed", None, "preflight_failed"),
        ("launch_failed", None, "launch_failed"),
    ],
)
def test_a_node_that_vanished_first_is_the_cause(
    lead: tuple[Lead, StopRequest], ended: str, failed_ns: int | None, expected: str
) -> None:
    """What the ranks did after a node was gone is the node's fault; what they did before is theirs."""
    head_agent, stop = lead
    head_agent.ended, head_agent.failed_ns = ended, failed_ns
    assert final_end(head_agent, stop) == expected
    assert head_agent.head is not None
    head_agent.head.nodes[1].report = {"ranks": []}
    assert final_end(head_agent, stop) == ended


def test_a_wish_to_cancel_stays_one(lead: tuple[Lead, StopRequest]) -> None:
    """With the file `cancel` a trial is cancelled whatever became of its nodes; the same for its time."""
    head_agent, stop = lead
    head_agent.ended = stop.reason = "total_timeout"
    assert final_end(head_agent, stop) == "total_timeout"
    (head_agent.plan.folder / "cancel").touch()
    head_agent.ended = stop.reason = "cancelled"
    assert final_end(head_agent, stop) == "cancelled"


def test_a_lost_node_is_in_the_result(lead: tuple[Lead, StopRequest]) -> None:
    """Its ranks are there with what was last heard, and its name is the scheduler's."""
    head_agent, _ = lead
    assert head_agent.head is not None
    state = head_agent.head.nodes[1]
    other = RemoteNode(state, head_agent.plan, 0)
    head_agent.others = [other]
    events: dict[str, Any] = {"ranks": [[True, False, False], [True, True, False]], "code": None}
    message = {
        "attempt": 0,
        "events": {**events, "launch_error": None},
        "updates": [4, 5],
        "ages_ns": [S, None],
    }
    state.state, state.state_ns = message, 100 * S
    other.refresh()
    ranks = rank_entries(head_agent)
    assert [(rank["rank"], rank["node"], rank["updates"], rank["end"]) for rank in ranks] == [
        (0, 0, 0, False),
        (1, 0, 0, False),
        (2, 1, 4, False),
        (3, 1, 5, True),
    ]
    assert ranks[2]["last_update_ns"] == 99 * S
    assert ranks[2].keys() == ranks[0].keys()
    own, lost = node_entries(head_agent, Examination(notes=["few CPUs"]))
    assert (own["reported"], own["problem"]) == (True, "few CPUs")
    assert (lost["name"], lost["reported"], lost["problem"]) == ("fake1.invalid", False, "gone")
    assert own.keys() == lost.keys()


def test_what_an_earlier_attempt_said_is_forgotten(lead: tuple[Lead, StopRequest]) -> None:
    """A state that was sent before everything was started again says nothing about the present attempt."""
    head_agent, _ = lead
    assert head_agent.head is not None
    state = head_agent.head.nodes[1]
    ranks = head_agent.station.trial.ranks
    state.state, state.state_ns = describe(ranks, 0, 1, "failed", 0), 5
    node = RemoteNode(state, head_agent.plan, 1)
    node.refresh()
    assert (node.code, node.launch_error) == (None, None)
    state.state, state.state_ns = describe(ranks, 1, 0, None, 0), 6
    node.refresh()
    assert node.code == 0


def test_times_move_to_the_heads_clock(lead: tuple[Lead, StopRequest]) -> None:
    """Every time of another node's report is moved, an absent one stays absent."""
    head_agent, _ = lead
    assert head_agent.head is not None
    state = head_agent.head.nodes[1]
    state.offset_ns = 1000
    state.report = {"ranks": [{"rank": 2, "first_update_ns": 5, "last_update_ns": None}]}
    assert reported_ranks(state) == [{"rank": 2, "first_update_ns": 1005, "last_update_ns": None}]
