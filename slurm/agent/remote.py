"""What the head knows of the other nodes' ranks while they run, and what it writes of them at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slurm.agent.head import NodeState
from slurm.agent.plan import LaunchPlan
from slurm.agent.ranks import RankRecord


class RemoteRank:
    """One rank of another node, as its agent last described it; times are on the head's clock."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.connected = False
        self.updates = 0
        self.end = False
        self.died = False
        self.last_update_ns: int | None = None


def describe(
    ranks: Sequence[RankRecord], attempt: int, code: int | None, launch_error: str | None, now_ns: int
) -> dict[str, Any]:
    """The state message of a node: `events` are told at once, the rest once a second."""
    return {
        "attempt": attempt,
        "events": {
            "ranks": [[rank.connected, rank.end, rank.died] for rank in ranks],
            "code": code,
            "launch_error": launch_error,
        },
        "updates": [rank.updates for rank in ranks],
        "ages_ns": [rank.last_update_ns and now_ns - rank.last_update_ns for rank in ranks],
    }


class RemoteNode:
    """Another node of the trial in the present attempt. `code` is its launcher's, once that has ended."""

    def __init__(self, state: NodeState, plan: LaunchPlan, attempt: int) -> None:
        first = state.rank * plan.ranks_per_node
        self.ranks = [RemoteRank(rank) for rank in range(first, first + plan.ranks_per_node)]
        self.code: int | None = None
        self.launch_error: str | None = None
        self._state = state
        self._attempt = attempt
        self._seen_ns = 0

    def refresh(self) -> None:
        """Take over what has arrived since the last look."""
        message, at_ns = self._state.state, self._state.state_ns
        if at_ns == self._seen_ns or message.get("attempt") != self._attempt:
            return
        self._seen_ns = at_ns
        events = message["events"]
        self.code, self.launch_error = events["code"], events["launch_error"]
        for index, rank in enumerate(self.ranks):
            rank.connected, rank.end, rank.died = events["ranks"][index]
            rank.updates = message["updates"][index]
            age_ns = message["ages_ns"][index]
            rank.last_update_ns = None if age_ns is None else at_ns - age_ns

    def all_ended(self) -> bool:
        """Whether every rank of the node has sent its end record."""
        return all(rank.end for rank in self.ranks)


def reported_ranks(state: NodeState) -> list[dict[str, Any]]:
    """The entries of a node's report, their times moved to the head's clock."""
    entries: list[dict[str, Any]] = (state.report or {}).get("ranks", [])
    offset_ns = state.offset_ns or 0
    for entry in entries:
        for name in ("first_update_ns", "last_update_ns"):
            if isinstance(entry.get(name), int):
                entry[name] += offset_ns
    return entries


def absent_rank(rank: int, node_rank: int, known: RemoteRank | None) -> dict[str, Any]:
    """The entry of a rank that nobody reported on: what was last heard of it, if anything."""
    return {
        "rank": rank,
        "node": node_rank,
        "pid": None,
        "hello": known.connected if known is not None else False,
        "updates": known.updates if known is not None else 0,
        "end": known.end if known is not None else False,
        "exit_code": None,
        "first_update_ns": None,
        "last_update_ns": known.last_update_ns if known is not None else None,
        "cpu_s": None,
        "peak_vm_data_bytes": None,
        "peak_vm_hwm_bytes": None,
        "limit_seen_bytes": None,
        "limit_lifted": None,
        "exception": None,
        "protocol_errors": [],
        "window": None,
    }
