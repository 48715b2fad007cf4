"""The numbers of one run over its measured window, recomputed from the raw updates."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engine.invariants.peak_memory import peak_memory_bytes
from engine.schema.evidence import RunEvidence, UpdateRecord
from engine.schema.run_view import RunView, mean, step_time_s, total, update_loss
from engine.schema.trial import Measurement, Phases
from engine.units import NS_PER_S, gib

Row = Sequence[UpdateRecord]


@dataclass(frozen=True)
class Unmeasured:
    """Why a run gives no numbers."""

    reason: str


def measure(evidence: RunEvidence, *, minimum_updates: int | None = None) -> Measurement | Unmeasured:
    """Numbers over the last `measured_updates` updates.

    Step time of an update = wall time of its slowest rank; the run's is the mean over the window: what a
    script does every few updates (logging, a checkpoint) is part of its cost, and a median would hide it.
    Phases are means over updates of the mean over ranks; communication is that of the rank that waits
    least, since the others' includes waiting for it. Memory is the highest peak of any rank.

    Args:
        evidence: The run.
        minimum_updates: Accept a run that was stopped early with at least so many updates after the warm-up.
    """
    view = RunView(evidence)
    warmup, wanted = evidence.warmup_updates, evidence.measured_updates
    rows = view.rows[warmup : evidence.total_updates] if warmup >= 0 else ()
    needed = wanted if minimum_updates is None else min(minimum_updates, wanted)
    if warmup < 1:
        return Unmeasured("no update lies before the measured window")
    if needed < 1 or len(rows) < needed:
        done = len(view.rows)
        return Unmeasured(f"{done} of {evidence.total_updates} updates were completed on all ranks")
    times = [step_time_s(row) for row in rows]
    seen = tuple(time for time in times if time is not None)
    if len(seen) < len(times):
        return Unmeasured("a rank reported no wall time for an update of the window")
    cpu_s = _cpu_s(view, rows)
    if cpu_s is None:
        return Unmeasured("neither the probe nor the agent saw the CPU time of every rank in the window")
    step = statistics.fmean(seen)
    tokens = _tokens(rows)
    peak = peak_memory_bytes(evidence) or None  # a peak of 0 bytes is a reading that failed
    return Measurement(
        step_time_s=step,
        step_times_s=seen,
        cpu_s_per_update=cpu_s,
        tokens_per_update=tokens,
        tokens_per_s=None if tokens is None else tokens / step,
        peak_memory_gib=None if peak is None else gib(peak),
        memory_metric=None
        if peak is None
        else ("cuda_allocated" if evidence.device == "cuda" else "vm_data"),
        phases=_phases(rows),
        losses=_losses(view),
        outside_step_time_s=_outside_step_time_s(evidence),
        start_s=_start_s(view),
        warmup_updates=warmup,
        probe_share=_probe_share(rows),
    )


def effective_step_time(measurement: Measurement, horizon_updates: int) -> float:
    """Seconds per update of a real run: the step time plus its share of the start-up.

    Start-up (imports, compilation, the first update) that was not seen is not charged.
    """
    return measurement.step_time_s + (measurement.start_s or 0.0) / max(horizon_updates, 1)


def log_ratio(before: Measurement, after: Measurement, horizon_updates: int) -> float:
    """Log of how much faster `after` is; start-up is charged to both, or to neither where one is unseen."""
    if before.start_s is None or after.start_s is None:
        return math.log(before.step_time_s / after.step_time_s)
    return math.log(
        effective_step_time(before, horizon_updates) / effective_step_time(after, horizon_updates)
    )


def mean_step_time(measurements: Sequence[Measurement], horizon_updates: int) -> float | None:
    """Geometric mean of the effective step times of several runs, None without runs."""
    if not measurements:
        return None
    logs = [math.log(effective_step_time(each, horizon_updates)) for each in measurements]
    return math.exp(statistics.fmean(logs))


def label_tokens_per_update(evidence: RunEvidence) -> int | None:
    """Tokens that enter the loss in one update, all ranks together (window's median); None = not seen."""
    view = RunView(evidence)
    rows = [view.rows[index] for index in view.window if index < len(view.rows)]
    counts = [total(row, lambda record: record.label_tokens) for row in rows]
    seen = [count for count in counts if count is not None]
    return int(statistics.median_low(seen)) if seen and len(seen) == len(counts) else None


def _cpu_s(view: RunView, rows: Sequence[Row]) -> float | None:
    """CPU time of an update, all ranks together: the probe's mean, else the agent's."""
    parts = [total(row, lambda record: record.cpu_ns) for row in rows]
    seen = [part for part in parts if part is not None]
    if len(seen) == len(parts):
        return statistics.fmean(seen) / NS_PER_S
    windows = [None if rank.agent is None else rank.agent.window for rank in view.ranks]
    totals = [None if window is None else window.cpu_s for window in windows]
    known = [value for value in totals if value is not None]
    return math.fsum(known) / len(view.window) if known and len(known) == len(totals) else None


def _tokens(rows: Sequence[Row]) -> int | None:
    """Token positions per update over all ranks; the window's median where they vary."""
    counts = [total(row, lambda record: record.tokens) for row in rows]
    seen = [count for count in counts if count is not None]
    return int(statistics.median_low(seen)) if len(seen) == len(counts) and min(seen) > 0 else None


def _outside_step_time_s(evidence: RunEvidence) -> float | None:
    """Mean step time over the window on the node agent's clock, of the rank that took longest."""
    elapsed = [
        None if rank.agent is None or rank.agent.window is None else rank.agent.window.elapsed_ns
        for rank in evidence.ranks
    ]
    seen = [value for value in elapsed if value is not None]
    if len(seen) < len(elapsed) or not seen or evidence.measured_updates < 1:
        return None
    return max(seen) / NS_PER_S / evidence.measured_updates


def _phase(
    rows: Sequence[Row],
    value: Callable[[UpdateRecord], int | None],
    over_ranks: Callable[[Sequence[float]], float] = mean,
) -> float | None:
    per_update = []
    for row in rows:
        parts = [value(record) for record in row]
        seen = [float(part) for part in parts if part is not None]
        if not seen or len(seen) < len(parts):
            return None
        per_update.append(over_ranks(seen))
    return max(statistics.fmean(per_update), 0.0) / NS_PER_S


def _phases(rows: Sequence[Row]) -> Phases:
    return Phases(
        forward=_phase(rows, lambda record: record.phases.forward),
        backward=_phase(rows, lambda record: record.phases.backward),
        optimizer=_phase(rows, lambda record: record.phases.optimizer),
        communication=_phase(rows, lambda record: record.phases.communication, min),
        data=_phase(rows, lambda record: record.phases.data),
    )


def _losses(view: RunView) -> tuple[float, ...]:
    """The loss of every update from 0 on; empty where any is unseen, so that positions stay true."""
    losses = [update_loss(row) for row in view.rows]
    return tuple(loss for loss in losses if loss is not None) if None not in losses else ()


def _start_s(view: RunView) -> float | None:
    """Launch to the end of the first update on the slowest rank; None where no clock tells."""
    run, starts = view.run, []
    for rank in view.ranks:
        hello = rank.hello
        first = next((update.arrived_ns for update in rank.updates if update.index == 0), None)
        if run.started_at is None or hello is None or first is None:
            return None
        if hello.unix_ns is None or hello.arrived_ns is None:
            return None
        starts.append(hello.unix_ns / NS_PER_S - run.started_at + (first - hello.arrived_ns) / NS_PER_S)
    start = max(starts, default=math.nan)
    return start if 0.0 <= start <= (run.wall_s if run.wall_s is not None else math.inf) else None


def _probe_share(rows: Sequence[Row]) -> float:
    """Largest share over ranks of the window that the probe's own callbacks took."""
    shares = []
    for rank in range(len(rows[0])):
        wall = sum(row[rank].wall_ns or 0 for row in rows)
        own = sum(row[rank].probe_ns or 0 for row in rows)
        shares.append(own / wall if wall > 0 else 0.0)
    return max(shares)
