"""A trial folder as the node agent and the probe write it, and ways to damage it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from engine.schema.plan import LaunchPlan, ProbePlan

TOTAL, MEASURED = 4, 2


def plan(folder: Path, *, ranks: int = 2) -> LaunchPlan:
    """The plan of a small run."""
    return LaunchPlan(
        trial_id="t1",
        token="secret",
        trial_dir=str(folder),
        workdir=str(folder / "work"),
        output_dir=str(folder / "output"),
        probe_dir=str(folder / "probe"),
        python="python",
        launcher="torchrun",
        command=["train.py"],
        setup=[],
        env={},
        unset=[],
        nodes=1,
        ranks_per_node=ranks,
        cpus_per_rank=1,
        device="cpu",
        memory_limit_bytes=None,
        total_updates=TOTAL,
        measured_updates=MEASURED,
        probe=ProbePlan(nonce="00"),
        start_timeout_s=60.0,
        update_timeout_s=60.0,
        total_timeout_s=600.0,
    )


def update_record(index: int, rank: int) -> dict[str, Any]:
    """One update as it comes over the wire."""
    return {
        "k": "update",
        "seq": 3 + index,
        "t_ns": 10 + index,
        "i": index,
        "wall_ns": (100 + 20 * rank + 10 * index) * 1_000_000,
        "end_ns": 1000 + index,
        "cpu_ns": 90_000_000,
        "probe_ns": 100_000,
        "phase_ns": {
            "forward": 30_000_000,
            "backward": 50_000_000,
            "optimizer": 5_000_000,
            "data": None,
            "eval": 0,
            "communication": (10 + 5 * rank) * 1_000_000,
        },
        "comm_source": "ddp_logger",
        "n": {"forward": 1, "backward": 1, "eval": 0, "data": 1, "optimizer": 1, "skipped": 0},
        "samples": 4,
        "tokens": 256,
        "label_tokens": 250,
        "label_source": "labels",
        "shapes": ["4x64"],
        "data_hash": f"{17 + index:016x}",
        "label_hash": "ffffffffffffffff",
        "label_hash_source": "labels",
        "loss": [2.0 + rank, 1.0],
        "grad_norm": 1.5,
        "grad_norm_source": "clip",
        "clip": [1.5],
        "clip_max": [1.0],
        "hyper": [[{"lr": 0.1, "betas": [0.9, 0.99], "fused": None}]],
        "steps": [{"optimizer": 0, "changed": 9, "sampled": 10}],
        "autocast": [],
        "grad_dtypes": ["float32"],
        "param_dtypes": ["float32"],
        "memory": {"vm_data": (3 + rank) << 30, "vm_hwm": 1, "vm_rss": 1},
        "hooks_ok": True,
        "clocks_ok": True,
        "compiles": 0,
        "arrived_ns": 5_000_000_000 + index * 110_000_000,
    }


def rank_records(rank: int) -> list[dict[str, Any]]:
    """All records of one rank."""
    clock = {"perf_ns": 1, "mono_ns": 1, "cpu_ns": 1, "unix_ns": 1_700_000_002_000_000_000}
    parameter = {
        "name": "w",
        "shape": [4, 4],
        "dtype": "float32",
        "trainable": True,
        "tied_to": None,
        "hash": "00000000000000ff",
        "sumsq": 4.0,
        "group": 0,
    }
    signature = {"k": "signature", "model": "Net", "params": [parameter], "buffers": [], "unavailable": None}
    return [
        {
            "k": "hello",
            "rank": rank,
            "world": 2,
            "pid": 5,
            "argv": ["a"],
            "clock": clock,
            "arrived_ns": 4_000_000_000,
        },
        {"k": "torch", "version": "2.13", "threads": 1, "hooks": ["forward"], "unavailable": {"gpu": "none"}},
        {**signature, "when": "start"},
        *(update_record(index, rank) for index in range(TOTAL)),
        {"k": "step", "i": 0, "optimizer": 0, "end_ns": 5},
        {"k": "optimizer", "index": 0, "class": "AdamW", "groups": [{"lr": 0.1, "n": 1, "numel": 16}]},
        {**signature, "when": "end"},
        {"k": "probe_error", "where": "clip", "error": "TypeError: odd"},
        {"k": "end", "updates": TOTAL, "reason": "stopped", "hooks_ok": True, "clocks_ok": True},
    ]


def result() -> dict[str, Any]:
    """The agent's result of a run that ended well."""
    ranks = [
        {
            "rank": rank,
            "pid": 5 + rank,
            "hello": True,
            "updates": TOTAL,
            "end": True,
            "exit_code": 0,
            "cpu_s": 2.5,
            "peak_vm_data_bytes": 5 << 30,
            "window": {"updates": [2, 3], "elapsed_ns": 220_000_000, "cpu_s": 0.18},
            "protocol_errors": [],
        }
        for rank in range(2)
    ]
    return {
        "version": 1,
        "trial_id": "t1",
        "token": "secret",
        "ended": "exited",
        "exit_code": 0,
        "signal": None,
        "started_at": 1_700_000_000.0,
        "wall_s": 9.0,
        "host": "node",
        "launch_error": None,
        "ranks": ranks,
    }


def write(folder: Path) -> Path:
    """Write a whole healthy trial folder."""
    for rank in range(2):
        lines = "".join(json.dumps(record) + "\n" for record in rank_records(rank))
        (folder / f"updates-{rank}.jsonl").write_text(lines)
        (folder / f"exit-{rank}.json").write_text(json.dumps({"rank": rank, "protocol_errors": []}))
    (folder / "result.json").write_text(json.dumps(result()))
    (folder / "launcher.log").write_text("hello\nworld\n")
    return folder
