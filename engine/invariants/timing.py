"""Timing consistency: two clocks agree, nobody touched them, and the window is steady."""

from __future__ import annotations

from engine.invariants.comparison import Comparison
from engine.invariants.findings import Findings
from engine.invariants.trend import mann_kendall_p, theil_sen_drift
from engine.schema.evidence import RankEvidence
from engine.schema.run_view import RunView, step_time_s
from engine.units import NS_PER_S

CLOCK_TOLERANCE = 0.05
"""Relative difference of the window's length between the probe's and the agent's clock."""

STARVED_TOLERANCE = 0.15
"""Up to here a rank may only have been kept from sending: such a run is repeated before it fails."""

CLOCK_SLACK_S = 0.02
"""A record may wait this long before the agent reads it."""

CPU_TOLERANCE = 0.10
CPU_SLACK_S = 0.10
"""CPU time from /proc comes in ticks of 10 ms."""

DRIFT_LIMIT = 0.25
"""Relative change of the step time over the window, by its median slope."""

DRIFT_SIGNIFICANCE = 0.02
"""Chance of so monotone an order without a drift (Mann-Kendall); at least five updates can reach it."""


def clock_agreement(comparison: Comparison, findings: Findings) -> None:
    """The window is as long on the agent's clock as the updates say; clocks and hooks are untouched."""
    before, after = comparison.baseline, comparison.candidate
    for rank in after.ranks:
        _untouched(rank, findings)
        _same_length(after, rank, findings)
        _same_cpu(after, rank, findings)
    for name, label in (("clocks_ok", "untouched clocks"), ("hooks_ok", "untouched hooks")):
        if _flag_unseen(after, name):
            if _flag_unseen(before, name):
                findings.unseen(f"{label}: {after.why_unseen(name)}", essential=True)
            else:
                findings.lost(label, after.why_unseen(name))
    if not after.ranks or any(_elapsed_s(after, rank) is None for rank in after.ranks):
        why = "the agent saw no full window on every rank"
        if before.ranks and all(_elapsed_s(before, rank) is not None for rank in before.ranks):
            findings.lost("the window on the agent's clock", why)
        else:
            findings.unseen(why, essential=True)
    _whole_run(after, findings)


def _flag_unseen(view: RunView, name: str) -> bool:
    records = [record for row in view.rows for record in row]
    return not records or any(getattr(record, name) is None for record in records)


def _untouched(rank: RankEvidence, findings: Findings) -> None:
    for name, label in (("clocks_ok", "clocks"), ("hooks_ok", "hooks")):
        bad = [record.index for record in rank.updates if getattr(record, name) is False]
        at_end = rank.end is not None and getattr(rank.end, name) is False
        if bad or at_end:
            where = f"from update {bad[0]}" if bad else "at the end"
            findings.fail(
                f"{label} of rank {rank.rank} were replaced {where}",
                expected=f"untouched {label}",
                observed=f"replaced {where}",
            )


def _window_walls(view: RunView, rank: RankEvidence) -> list[int] | None:
    by_index = {record.index: record for record in rank.updates}
    walls = [by_index[index].wall_ns for index in view.window if index in by_index]
    if not walls or None in walls or len(walls) != len(view.window):
        return None
    return [wall for wall in walls if wall is not None]


def _elapsed_s(view: RunView, rank: RankEvidence) -> float | None:
    """The window on the agent's clock: its own reading, else from the stamps of arrival."""
    reading = None if rank.agent is None else rank.agent.window
    if reading is not None and reading.first == view.window.start and reading.last == view.window.stop - 1:
        return None if reading.elapsed_ns is None else reading.elapsed_ns / NS_PER_S
    stamps = {record.index: record.arrived_ns for record in rank.updates}
    first, last = stamps.get(view.window.start - 1), stamps.get(view.window.stop - 1)
    return None if first is None or last is None else (last - first) / NS_PER_S


def _same_length(view: RunView, rank: RankEvidence, findings: Findings) -> None:
    walls, outside = _window_walls(view, rank), _elapsed_s(view, rank)
    if walls is None or outside is None:
        return
    inside = sum(walls) / NS_PER_S
    apart = abs(inside - outside)
    if apart > CLOCK_TOLERANCE * abs(outside) + CLOCK_SLACK_S:
        findings.fail(
            f"rank {rank.rank} reports {inside:.3f} s for the window, the node agent saw {outside:.3f} s",
            expected=f"{outside:.3f} s",
            observed=f"{inside:.3f} s",
            statistical=apart <= STARVED_TOLERANCE * abs(outside),
        )
    else:
        findings.passed(f"rank {rank.rank}: {inside:.3f} s by the probe, {outside:.3f} s by the agent")


def _same_cpu(view: RunView, rank: RankEvidence, findings: Findings) -> None:
    reading = None if rank.agent is None else rank.agent.window
    by_index = {record.index: record.cpu_ns for record in rank.updates}
    parts = [by_index.get(index) for index in view.window]
    if reading is None or reading.cpu_s is None or not parts or None in parts:
        findings.unseen(f"CPU time of rank {rank.rank} over the window on both sides")
        return
    inside = sum(part for part in parts if part is not None) / NS_PER_S
    if abs(inside - reading.cpu_s) > CPU_TOLERANCE * max(inside, reading.cpu_s) + CPU_SLACK_S:
        findings.fail(
            f"rank {rank.rank} reports {inside:.3f} s of CPU time for the window, "
            f"/proc shows {reading.cpu_s:.3f} s",
            expected=f"{reading.cpu_s:.3f} s of CPU time",
            observed=f"{inside:.3f} s",
        )


def _whole_run(view: RunView, findings: Findings) -> None:
    if view.run.wall_s is None:
        findings.unseen("the length of the whole run")
        return
    for rank in view.ranks:
        inside = sum(record.wall_ns or 0 for record in rank.updates) / NS_PER_S
        whole = f"a run of {view.run.wall_s:.1f} s"
        if inside > view.run.wall_s * (1 + CLOCK_TOLERANCE) + CLOCK_SLACK_S:
            findings.fail(
                f"the updates of rank {rank.rank} add up to {inside:.1f} s in {whole}",
                expected=f"at most {view.run.wall_s:.1f} s",
                observed=f"{inside:.1f} s",
            )


def steady_state(comparison: Comparison, findings: Findings) -> None:
    """No compilation inside the window, and step times without a drift."""
    if comparison.context.is_short_run:
        findings.unseen("the run is a short one, which has no steady state to judge", essential=True)
        return
    view = comparison.candidate
    _no_compiles(view, findings)
    times = [step_time_s(view.rows[index]) for index in view.window if index < len(view.rows)]
    seen = [time for time in times if time is not None]
    if not seen or len(seen) < len(times):
        before = [step_time_s(row) for row in comparison.baseline.rows]
        if before and None not in before:
            findings.lost("step times in the window", view.why_unseen("wall"))
        else:
            findings.unseen("step times in the window were not seen", essential=True)
        return
    drift, chance = theil_sen_drift(seen), mann_kendall_p(seen)
    if abs(drift) > DRIFT_LIMIT and chance < DRIFT_SIGNIFICANCE:
        findings.fail(
            f"step times drift by {drift:+.0%} over the window ({seen[0]:.3f} s to {seen[-1]:.3f} s)",
            expected=f"a drift below {DRIFT_LIMIT:.0%}",
            observed=f"{drift:+.0%}",
            statistical=True,
        )
    else:
        findings.passed(f"step times drift by {drift:+.1%} over {len(seen)} updates")


def _no_compiles(view: RunView, findings: Findings) -> None:
    """A rank without a count never loaded the compiler, so unseen is not lost here."""
    for rank in view.ranks:
        counts = {record.index: record.compiles for record in rank.updates}
        before = counts.get(view.window.start - 1) or 0
        after = max((counts.get(index) or 0 for index in view.window), default=0)
        if after > before:
            findings.fail(
                f"rank {rank.rank} compiled {after - before} graphs inside the measured window",
                expected="all compilation during the warm-up",
                observed=f"{after - before} graphs compiled in the window",
                statistical=True,
            )
