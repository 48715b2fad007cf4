"""How fast a configuration trains, how much memory it pretends to need, and what it refuses."""

from __future__ import annotations

import math
import zlib

BYTES_PER_GIB = 1 << 30
SAMPLES = 8
"""Per rank and update, whatever the micro-batch."""

_GAIN = {
    "micro_batch": {1: 0.0, 2: 0.15, 4: 0.25, 8: 0.30},
    "recompute": {"full": 0.0, "selective": 0.12, "none": 0.22},
    "attention": {"eager": 0.0, "sdpa": 0.12, "flex": 0.05},
    "workers": {0: 0.0, 2: 0.05, 4: 0.06},
}
_ACTIVATIONS = {"full": 0.3, "selective": 0.6, "none": 1.0}
_BETWEEN_RUNS = 0.004


def behaviour(config, run):
    """What the ranks of one run do.

    Args:
        config: The parsed config.toml; absent keys read as in the unchanged job.
        run: A text that differs between runs and is equal on all nodes of one: the seed of the noise.

    Returns:
        step_s, noise_seed, memory_bytes, micro_batch, startup_s, refuses (a message or None) and drill.
    """
    train, pace = config.get("train", {}), config.get("pace", {})
    chosen = {
        "micro_batch": train.get("micro_batch", 1),
        "recompute": train.get("recompute", "full"),
        "attention": config.get("model", {}).get("attention", "eager"),
        "workers": config.get("data", {}).get("workers", 0),
    }
    seed = zlib.crc32(run.encode())
    faster = sum(_GAIN[name][value] for name, value in chosen.items())
    noise = _BETWEEN_RUNS * (2.0 * seed / 0xFFFFFFFF - 1.0)
    gib = 0.4 + 0.3 * chosen["micro_batch"] * _ACTIVATIONS[chosen["recompute"]]
    conflict = chosen["attention"] == "flex" and chosen["workers"] == 2
    return {
        "step_s": 1e-3 * pace.get("step_ms", 60) * math.exp(noise - faster),
        "noise_seed": seed,
        "memory_bytes": int(gib * BYTES_PER_GIB),
        "micro_batch": chosen["micro_batch"],
        "startup_s": 1e-3 * pace.get("startup_ms", 0),
        "refuses": "flexible attention cannot share its block mask with two workers" if conflict else None,
        "drill": {"mode": "none", "rank": 1, "update": 2, "folder": "", **config.get("drill", {})},
    }
