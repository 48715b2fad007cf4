"""A trial folder as probe and node agent would leave it, made from a few numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from engine.schema.plan import LaunchPlan
from tests.evidence.folders import update_record

START_S = 4.0
"""From the launch to the beginning of the first update."""
SAMPLES, SEQUENCE = 8, 64
_HELLO_NS = 4_000_000_000
_NS = 1_000_000_000


@dataclass(frozen=True)
class Run:
    """What a run did: one time per update; `exception` ends it in the first update.

    nodes: names by node rank; gaps_s: longest pause of each node's agent; lost: node ranks whose agent went
    away; slurm: the job of the agents as result.json holds it.
    """

    step_times_s: Sequence[float]
    losses: Sequence[float]
    micro_batch: int
    peak_bytes: int
    started_at: float
    tokens_share: float = 1.0
    exception: dict[str, Any] | None = None
    ended: str = "exited"
    nodes: tuple[str, ...] = ()
    gaps_s: tuple[float, ...] = ()
    lost: tuple[int, ...] = ()
    slurm: dict[str, Any] | None = None

    @property
    def wall_s(self) -> float:
        """Seconds for which the machine was held: whole multiples of ten, as schedulers charge."""
        return 10.0 * (1 + (START_S + sum(self.step_times_s) + 1.0) // 10.0)


def out_of_memory(held: int, tried: int) -> dict[str, Any]:
    """The record of a refused allocation on cpu."""
    message = (
        "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: "
        f"you tried to allocate {tried} bytes. Error code 12 (Cannot allocate memory)"
    )
    return _exception("RuntimeError", ["RuntimeError", "Exception"], message, held)


def conflict(held: int) -> dict[str, Any]:
    """The record of settings that the code refuses."""
    message = "flexible attention cannot share its block mask with two worker processes"
    return _exception("ValueError", ["ValueError", "Exception"], message, held)


def crash(held: int) -> dict[str, Any]:
    """The record of a job that is broken by itself."""
    message = "No such file or directory: 'corpus.bin'"
    return _exception("FileNotFoundError", ["FileNotFoundError", "OSError", "Exception"], message, held)


def write_trial(plan: LaunchPlan, run: Run) -> None:
    """Write everything, result.json last."""
    folder = Path(plan.trial_dir)
    if run.exception is not None:
        run = replace(run, step_times_s=(), losses=())
    for rank in range(plan.nodes * plan.ranks_per_node):
        records = _rank_records(plan, run, rank)
        lines = "".join(json.dumps({**record, "seq": n}) + "\n" for n, record in enumerate(records))
        (folder / f"updates-{rank}.jsonl").write_text(lines)
        exit_record = {"rank": rank, "exception": _exception_of(run, rank), "protocol_errors": []}
        (folder / f"exit-{rank}.json").write_text(json.dumps(exit_record))
    (folder / "launcher.log").write_text("started\n")
    temporary = folder / ".result.json.tmp"
    temporary.write_text(json.dumps(_result(plan, run)))
    temporary.rename(folder / "result.json")


def _exception(kind: str, bases: list[str], message: str, held: int) -> dict[str, Any]:
    return {
        "phase": "uncaught",
        "type": kind,
        "mro": bases,
        "message": message,
        "frames": [{"file": "train.py", "line": 7, "name": "main"}],
        "update": 0,
        "memory": {"vm_data": held, "vm_hwm": held, "vm_rss": held},
        "cuda_memory": None,
    }


def _exception_of(run: Run, rank: int) -> dict[str, Any] | None:
    return run.exception if rank == 0 else None


def _signature(when: str) -> dict[str, Any]:
    moved = when == "end"
    parameter = {
        "name": "layer.weight",
        "shape": [4, 4],
        "dtype": "float32",
        "trainable": True,
        "tied_to": None,
        "hash": "00000000000000fe" if moved else "00000000000000ff",
        "sumsq": 4.4 if moved else 4.0,
        "group": 0,
    }
    return {
        "k": "signature",
        "when": when,
        "model": "Net",
        "params": [parameter],
        "buffers": [],
        "unavailable": None,
    }


def _rank_records(plan: LaunchPlan, run: Run, rank: int) -> list[dict[str, Any]]:
    unix_ns = int((run.started_at + 1.0) * _NS)
    clock = {"perf_ns": 1, "mono_ns": 1, "cpu_ns": 1, "unix_ns": unix_ns}
    records: list[dict[str, Any]] = [
        {
            "k": "hello",
            "rank": rank,
            "local_rank": rank % plan.ranks_per_node,
            "world": plan.nodes * plan.ranks_per_node,
            "pid": 50 + rank,
            "argv": plan.command,
            "clock": clock,
            "arrived_ns": _HELLO_NS,
        },
        {"k": "torch", "version": "2.13", "threads": 1, "hooks": ["forward"], "unavailable": {}},
        _signature("start"),
    ]
    if run.exception is not None:
        if rank == 0:
            records.append({"k": "exception", **run.exception})
        return records
    optimizer = {
        "k": "optimizer",
        "index": 0,
        "class": "AdamW",
        "groups": [{"lr": 0.1, "n": 1, "numel": 16}],
        "state_dtypes": {"exp_avg:float32": 16},
    }
    records.append(optimizer)
    records += [_update(run, rank, index) for index in range(len(run.step_times_s))]
    records.append(_signature("end"))
    done = len(run.step_times_s)
    records.append({"k": "end", "updates": done, "reason": "stopped", "hooks_ok": True, "clocks_ok": True})
    return records


def _update(run: Run, rank: int, index: int) -> dict[str, Any]:
    wall_ns = int(run.step_times_s[index] * _NS)
    passes = max(1, SAMPLES // run.micro_batch)
    tokens = int(SAMPLES * SEQUENCE * run.tokens_share)
    return {
        **update_record(index, rank),
        "wall_ns": wall_ns,
        "cpu_ns": int(0.9 * wall_ns),
        "phase_ns": {
            "forward": int(0.3 * wall_ns),
            "backward": int(0.5 * wall_ns),
            "optimizer": int(0.1 * wall_ns),
            "data": int(0.05 * wall_ns),
            "eval": 0,
            "communication": int(0.1 * wall_ns),
        },
        "n": {
            "forward": passes,
            "backward": passes,
            "eval": 0,
            "data": passes,
            "optimizer": 1,
            "skipped": 0,
        },
        "samples": SAMPLES,
        "tokens": tokens,
        "label_tokens": tokens,
        "shapes": [f"{run.micro_batch}x{SEQUENCE}"],
        "loss": [run.losses[index]],
        "memory": {"vm_data": run.peak_bytes, "vm_hwm": run.peak_bytes, "vm_rss": run.peak_bytes},
        "arrived_ns": _arrival_ns(run, index),
    }


def _arrival_ns(run: Run, index: int) -> int:
    before = START_S - 1.0 + sum(run.step_times_s[: index + 1])
    return _HELLO_NS + int(before * _NS)


def _rank_result(plan: LaunchPlan, run: Run, rank: int) -> dict[str, Any]:
    first, last = plan.total_updates - plan.measured_updates, plan.total_updates - 1
    done = len(run.step_times_s)
    failed = run.exception is not None
    window = None
    if done == plan.total_updates:
        elapsed = _arrival_ns(run, last) - _arrival_ns(run, first - 1)
        window = {"updates": [first, last], "elapsed_ns": elapsed, "cpu_s": 0.9 * elapsed / _NS}
    return {
        "rank": rank,
        "node": rank // plan.ranks_per_node,
        "pid": 50 + rank,
        "hello": True,
        "updates": done,
        "end": not failed,
        "exit_code": int(failed and rank == 0),
        "cpu_s": 0.9 * sum(run.step_times_s),
        "peak_vm_data_bytes": run.peak_bytes,
        "limit_seen_bytes": plan.memory_limit_bytes,
        "exception": _exception_of(run, rank),
        "window": window,
        "protocol_errors": [],
    }


def _result(plan: LaunchPlan, run: Run) -> dict[str, Any]:
    return {
        "version": 1,
        "trial_id": plan.trial_id,
        "token": plan.token,
        "ended": run.ended,
        "exit_code": int(run.exception is not None),
        "signal": None,
        "started_at": run.started_at,
        "finished_at": run.started_at + run.wall_s,
        "wall_s": run.wall_s,
        "host": "node-of-nobody",
        "launch_error": None,
        "ranks": [_rank_result(plan, run, rank) for rank in range(plan.nodes * plan.ranks_per_node)],
        "nodes": [_node_result(run, node_rank) for node_rank in range(len(run.nodes))],
        "slurm": run.slurm,
    }


def _node_result(run: Run, node_rank: int) -> dict[str, Any]:
    return {
        "node_rank": node_rank,
        "name": run.nodes[node_rank],
        "host": f"{run.nodes[node_rank]}.of.nobody",
        "reported": node_rank not in run.lost,
        "longest_gap_s": run.gaps_s[node_rank] if run.gaps_s else 0.3,
        "cpus": 16,
        "devices": None,
        "problem": None,
    }
