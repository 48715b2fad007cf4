"""The records of a rank: what the probe says of a healthy run of a small model, from a few numbers."""

from __future__ import annotations

import os
import sys

from landscape import SAMPLES

SEQUENCE = 64
_PARAMETERS = {"embedding.weight": (16, 8), "layers.0.weight": (8, 8), "head.weight": (16, 8)}
_GROUP = {"lr": 0.001, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}


def hello(rank, world, unix_ns):
    """Who speaks."""
    return {
        "rank": rank,
        "local_rank": int(os.environ.get("LOCAL_RANK", rank)),
        "world": world,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": ["trainer.py"],
        "python": sys.version,
        "clock": {"perf_ns": 1, "mono_ns": 1, "cpu_ns": 1, "unix_ns": unix_ns},
    }


def torch(limit_bytes):
    """What there is to observe."""
    return {
        "version": "2.9.0",
        "threads": 1,
        "device_name": None,
        "rlimit_data": limit_bytes,
        "hooks": ["forward", "backward", "optimizer", "dataloader"],
        "unavailable": {"device_name": "no accelerator", "real_tokens": "no attention mask is used"},
    }


def signature(when, updates):
    """The parameters, equal on all ranks; moved a little by every update."""
    parameters = []
    for number, (name, shape) in enumerate(_PARAMETERS.items()):
        size = shape[0] * shape[1]
        content = (number + 1) * 0x1000000 + updates
        parameters.append(
            {
                "name": name,
                "shape": list(shape),
                "dtype": "float32",
                "trainable": True,
                "tied_to": None,
                "hash": f"{content:016x}",
                "sumsq": 0.02 * size * (1.0 + 0.003 * updates),
                "group": 0,
                "sharded": False,
                "replica": None,
            }
        )
    return {"when": when, "model": "Net", "params": parameters, "buffers": [], "unavailable": None}


def optimizer():
    """AdamW over all parameters."""
    numel = sum(rows * columns for rows, columns in _PARAMETERS.values())
    states = {"exp_avg:float32": numel, "exp_avg_sq:float32": numel}
    return {
        "index": 0,
        "class": "AdamW",
        "groups": [{**_GROUP, "n": len(_PARAMETERS), "numel": numel}],
        "state_dtypes": states,
        "wrapper": None,
    }


def update(index, rank, spec, times, perturbed):
    """One update; `times` holds end_ns, wall_ns, cpu_ns, probe_ns and communication_ns."""
    passes = max(1, SAMPLES // spec["micro_batch"])
    busy = times["wall_ns"] - times["communication_ns"]
    data = (index + 1) * 1_000_003 + rank
    memory = spec["memory_bytes"]
    return {
        "i": index,
        "wall_ns": times["wall_ns"],
        "end_ns": times["end_ns"],
        "cpu_ns": times["cpu_ns"],
        "probe_ns": times["probe_ns"],
        "phase_ns": {
            "forward": int(0.30 * busy),
            "backward": int(0.55 * busy),
            "optimizer": int(0.08 * busy),
            "data": int(0.05 * busy),
            "eval": 0,
            "communication": times["communication_ns"],
        },
        "comm_source": "ddp_logger",
        "n": {"forward": passes, "backward": passes, "eval": 0, "data": passes, "optimizer": 1, "skipped": 0},
        "samples": SAMPLES,
        "tokens": SAMPLES * SEQUENCE,
        "real_tokens": None,
        "label_tokens": SAMPLES * SEQUENCE,
        "label_source": "labels",
        "shapes": [f"{spec['micro_batch']}x{SEQUENCE}"],
        "data_hash": f"{data:016x}",
        "label_hash": f"{data + 500:016x}",
        "label_hash_source": "labels",
        "loss": [5.0 - 0.1 * index + 0.01 * rank + (1e-6 if perturbed else 0.0)],
        "grad_norm": 2.0 - 0.05 * index,
        "grad_norm_source": "clip",
        "clip": [2.0 - 0.05 * index],
        "clip_max": [1.0],
        "hyper": [[_GROUP]],
        "steps": [{"optimizer": 0, "changed": 64, "sampled": 64}],
        "autocast": [],
        "grad_dtypes": ["float32"],
        "param_dtypes": ["float32"],
        "memory": {"vm_data": memory, "vm_hwm": memory, "vm_rss": memory},
        "hooks_ok": True,
        "clocks_ok": True,
        "compiles": 0,
    }


def exception(kind, bases, message, held_bytes, index):
    """What was raised in the training loop."""
    return {
        "phase": "uncaught",
        "type": kind,
        "mro": [kind, *bases],
        "message": message,
        "frames": [{"file": "trainer.py", "line": 1, "name": "train"}],
        "update": index,
        "memory": {"vm_data": held_bytes, "vm_hwm": held_bytes, "vm_rss": held_bytes},
        "cuda_memory": None,
    }
