"""One result out of what all nodes know."""

from __future__ import annotations

from typing import Any

from slurm.agent.head import NodeState
from slurm.agent.lead import Lead
from slurm.agent.node import host_names
from slurm.agent.preflight import Examination
from slurm.agent.remote import absent_rank, reported_ranks
from slurm.agent.result import code_entries, rank_entry
from slurm.agent.stopping import StopRequest

_SAME_MOMENT_NS = 2_000_000_000
"""A node that was last heard this long after a failure may have caused it: it beats every second."""


def final_end(lead: Lead, stop: StopRequest) -> str:
    """`ended` of the result: a node that vanished first is the cause of what the others then did."""
    gone = [] if lead.head is None else lead.head.lost()
    if not gone or lead.ended in ("node_lost", "preflight_failed", "launch_failed"):
        return lead.ended
    if lead.ended == "cancelled":
        # Schedulers end the other agents of a step when one is gone.
        return "cancelled" if stop.is_cancelled_by_file() else "node_lost"
    if lead.ended == stop.reason:
        return lead.ended
    failed_ns = lead.failed_ns
    if failed_ns is None or any(state.heard_ns < failed_ns + _SAME_MOMENT_NS for state in gone):
        return "node_lost"
    return lead.ended


def node_entries(lead: Lead, examination: Examination) -> list[dict[str, Any]]:
    """The `nodes` of the result, in the order of their ranks."""
    node = lead.station.node
    own = {
        "node_rank": 0,
        "name": node.name,
        "host": node.host,
        "reported": True,
        "longest_gap_s": lead.station.longest_gap_s,
        "cpus": examination.cpus,
        "devices": examination.devices,
        "problem": "; ".join(examination.notes) or None,
        **code_entries(lead.station.trial.launcher_code()),
        "clock_offset_ns": 0,
    }
    names = host_names(node.nodelist or "")
    states = [] if lead.head is None else list(lead.head.nodes.values())
    return [own, *(_other_node(state, names) for state in states)]


def rank_entries(lead: Lead) -> list[dict[str, Any]]:
    """The `ranks` of the result; whoever did not report is there with what was last heard."""
    plan = lead.plan
    entries = {rank.rank: rank_entry(plan, rank, 0) for rank in lead.station.trial.ranks}
    for state in lead.head.nodes.values() if lead.head is not None else ():
        entries.update({entry["rank"]: entry for entry in reported_ranks(state)})
    last_heard = {rank.rank: rank for other in lead.others for rank in other.ranks}
    return [
        entries.get(rank) or absent_rank(rank, rank // plan.ranks_per_node, last_heard.get(rank))
        for rank in range(plan.world_size)
    ]


def _other_node(state: NodeState, names: list[str]) -> dict[str, Any]:
    facts, report = state.facts or {}, state.report or {}
    notes = report.get("notes", facts.get("notes", []))
    problems = [*([state.lost] if state.lost and state.report is None else []), *notes]
    known = names[state.rank] if state.rank < len(names) else f"node {state.rank}"
    return {
        "node_rank": state.rank,
        "name": facts.get("name", known),
        "host": facts.get("host"),
        "reported": state.report is not None,
        "longest_gap_s": report.get("longest_gap_s", 0.0),
        "cpus": facts.get("cpus"),
        "devices": facts.get("devices"),
        "problem": "; ".join(problems) or None,
        "exit_code": report.get("exit_code"),
        "signal": report.get("signal"),
        "clock_offset_ns": state.offset_ns,
    }
