"""exit-<rank>.json and result.json."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from slurm.agent.durable import write_json
from slurm.agent.plan import LaunchPlan
from slurm.agent.ranks import RankRecord


@dataclass(frozen=True)
class Ending:
    """How it ended: `ended` as in result.json, times in unix seconds, `returncode` as in subprocess."""

    ended: str
    returncode: int | None
    launch_error: str | None
    started_at: float
    finished_at: float
    wall_s: float


def write_result(plan: LaunchPlan, ranks: Sequence[RankRecord], ending: Ending) -> None:
    """Write the ranks' exit files, then result.json: its existence says that the trial is over."""
    for rank in ranks:
        write_json(plan.folder / f"exit-{rank.rank}.json", _exit_record(rank))
    write_json(plan.folder / "result.json", _result(plan, ranks, ending))


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


def _result(plan: LaunchPlan, ranks: Sequence[RankRecord], ending: Ending) -> dict[str, Any]:
    code = ending.returncode
    return {
        "version": 1,
        "trial_id": plan.trial_id,
        "token": plan.token,
        "ended": ending.ended,
        "exit_code": code if code is not None and code >= 0 else None,
        "signal": -code if code is not None and code < 0 else None,
        "started_at": ending.started_at,
        "finished_at": ending.finished_at,
        "wall_s": ending.wall_s,
        "host": socket.gethostname(),
        "launch_error": ending.launch_error,
        "ranks": [_rank_result(plan, rank) for rank in ranks],
    }


def _rank_result(plan: LaunchPlan, rank: RankRecord) -> dict[str, Any]:
    meter = rank.meter
    return {
        "rank": rank.rank,
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
