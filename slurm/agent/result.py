"""exit-<rank>.json and result.json."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from slurm.agent.durable import write_json
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan
from slurm.agent.ranks import RankRecord

WRITE_LIMIT_S = 30.0
"""Seconds for which writing the result is tried again."""

_WRITE_PAUSE_S = 0.5


@dataclass(frozen=True)
class Ending:
    """How it ended: `ended` as in result.json, times in unix seconds, `returncode` as in subprocess."""

    ended: str
    returncode: int | None
    launch_error: str | None
    started_at: float
    finished_at: float
    wall_s: float


class ResultLostError(Exception):
    """The trial is over and its result cannot be written."""


def write_exits(plan: LaunchPlan, ranks: Sequence[RankRecord]) -> str | None:
    """Write this node's exit files; what went wrong, if anything: all of it is in the result as well."""
    problem = None
    for rank in ranks:
        path = plan.folder / f"exit-{rank.rank}.json"
        try:
            write_json(path, _exit_record(rank))
        except OSError as error:
            problem = f"{path.name} cannot be written: {error.strerror or error}"
    return problem


def write_result(plan: LaunchPlan, result: dict[str, Any], wait: Callable[[float], None]) -> None:
    """Write result.json: its existence says that the trial is over. A full disk gets time to recover.

    Args:
        plan: The trial.
        result: The content.
        wait: Lets so many seconds pass.

    Raises:
        ResultLostError: the disk refused for 30 seconds.
    """
    path = plan.folder / "result.json"
    deadline = time.monotonic() + WRITE_LIMIT_S
    while True:
        try:
            write_json(path, result)
        except OSError as error:
            if time.monotonic() > deadline:
                raise ResultLostError(f"{path}: cannot be written: {error.strerror or error}") from error
        else:
            return
        wait(_WRITE_PAUSE_S)


def _exit_record(rank: RankRecord) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "peer_pid": rank.meter.pid if rank.meter else None,
        "hello": rank.connected,
        "updates": rank.updates,
        "end": rank.end,
        "exception": rank.exception,
        "protocol_errors": rank.all_errors(),
    }


def whole_result(
    plan: LaunchPlan,
    node: NodeIdentity,
    ending: Ending,
    nodes: list[dict[str, Any]],
    ranks: list[dict[str, Any]],
) -> dict[str, Any]:
    """The content of result.json, put together from the entries of all nodes and ranks."""
    code = ending.returncode
    return {
        "version": 1,
        "trial_id": plan.trial_id,
        "token": plan.token,
        "ended": ending.ended,
        **code_entries(code),
        "started_at": ending.started_at,
        "finished_at": ending.finished_at,
        "wall_s": ending.wall_s,
        "host": node.host,
        "launch_error": ending.launch_error,
        "nodes": nodes,
        "slurm": node.slurm(),
        "ranks": ranks,
    }


def code_entries(code: int | None) -> dict[str, int | None]:
    """A return code as of subprocess, as `exit_code` and `signal`."""
    return {
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
    }


def rank_entry(plan: LaunchPlan, rank: RankRecord, node_rank: int) -> dict[str, Any]:
    """What one rank's own node says of it. Times are on that node's clock."""
    meter = rank.meter
    return {
        "rank": rank.rank,
        "node": node_rank,
        "pid": rank.pid,
        "hello": rank.connected,
        "updates": rank.updates,
        "end": rank.end,
        "exit_code": meter.exit_code if meter else None,
        "first_update_ns": rank.first_update_ns,
        "last_update_ns": rank.last_update_ns,
        "cpu_s": meter.cpu_s if meter else None,
        "peak_vm_data_bytes": meter.peak_vm_data_bytes if meter else None,
        "peak_vm_hwm_bytes": meter.peak_vm_hwm_bytes if meter else None,
        "limit_seen_bytes": meter.limit_seen_bytes if meter else None,
        "limit_lifted": meter.limit_lifted if meter else None,
        "exception": rank.exception,
        "protocol_errors": rank.all_errors(),
        "window": _window(plan, rank),
    }


def _window(plan: LaunchPlan, rank: RankRecord) -> dict[str, Any] | None:
    """The measured updates (ordinals from 0, both included), from the arrival of the update before them.

    None when the run was too short, or when no update lies before the window.
    """
    first = plan.total_updates - plan.measured_updates
    last = plan.total_updates - 1
    if plan.measured_updates < 1 or first < 1 or len(rank.marks) <= last:
        return None
    (start_ns, start_cpu_s), (end_ns, end_cpu_s) = rank.marks[first - 1], rank.marks[last]
    return {
        "updates": [first, last],
        "elapsed_ns": end_ns - start_ns,
        "cpu_s": None if start_cpu_s is None or end_cpu_s is None else end_cpu_s - start_cpu_s,
    }
