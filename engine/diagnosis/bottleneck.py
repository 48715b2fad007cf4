"""What limits the job, in one word and one sentence.

A share of the step that is not arithmetic and exceeds a fifth is named before anything else: removing it
alone would give a speed-up of at least 1.25 (Amdahl 1967). Without one, the job is limited by the capacity of
its memory when little is left, else by arithmetic.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from engine.schema.trial import Phases

BottleneckKind = Literal["compute", "memory", "communication", "io", "host"]

_NAMED_SHARE = 0.20
_FULL_MEMORY = 0.85


class BottleneckFinding(NamedTuple):
    """The kind, and the sentence that says why."""

    kind: BottleneckKind
    reason: str


def classify_bottleneck(
    step_time_s: float,
    phases: Phases,
    unexplained_s: float | None,
    peak_memory_gib: float | None,
    memory_limit_gib: float | None,
) -> BottleneckFinding:
    """Name the bottleneck of the unchanged job."""
    waits: tuple[tuple[BottleneckKind, float | None, str], ...] = (
        ("io", phases.data, "waiting for data"),
        ("communication", phases.communication, "exposed communication"),
        ("host", unexplained_s, "work of the host outside forward, backward, optimizer and data loading"),
    )
    shares = [(seconds / step_time_s, kind, name) for kind, seconds, name in waits if seconds is not None]
    share, kind, name = max(shares, default=(0.0, "compute", ""))
    if share >= _NAMED_SHARE:
        return BottleneckFinding(kind, f"{share:.0%} of an update is {name}")
    if peak_memory_gib is not None and memory_limit_gib is not None:
        used = peak_memory_gib / memory_limit_gib
        if used >= _FULL_MEMORY:
            sizes = f"the peak of {peak_memory_gib:.2f} GiB is {used:.0%} of {memory_limit_gib:.2f} GiB"
            return BottleneckFinding("memory", sizes)
    if not shares:
        return BottleneckFinding("compute", "no phase was visible, so arithmetic is assumed")
    return BottleneckFinding("compute", f"the largest wait ({name}) is {share:.0%} of an update")
