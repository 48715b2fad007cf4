"""The clocks of the probe, bound before user code runs; every reading is in integer nanoseconds."""

from __future__ import annotations

import sys
import time

perf_ns = time.perf_counter_ns
monotonic_ns = time.monotonic_ns
cpu_ns = time.process_time_ns
unix_ns = time.time_ns

_MODULE = time
_BOUND = tuple(
    (name, getattr(time, name))
    for name in (
        "time",
        "time_ns",
        "perf_counter",
        "perf_counter_ns",
        "monotonic",
        "monotonic_ns",
        "process_time",
        "process_time_ns",
    )
)


def readings() -> dict[str, int]:
    """All clocks at one moment, so that the agent can relate them to its own."""
    return {"perf_ns": perf_ns(), "mono_ns": monotonic_ns(), "cpu_ns": cpu_ns(), "unix_ns": unix_ns()}


def changed() -> list[str]:
    """Names of the `time` module that no longer are what they were at start-up."""
    if sys.modules.get("time") is not _MODULE:
        return ["time module"]
    namespace = _MODULE.__dict__
    return ["time." + name for name, function in _BOUND if namespace.get(name) is not function]
