"""Workload: all of the work is done, in every micro-batch and for every parameter."""

from __future__ import annotations

from collections import Counter

from engine.invariants.comparison import Comparison, Row
from engine.invariants.findings import Findings
from engine.schema.model_state import end_state, parameter_class, start_state
from engine.schema.run_view import step_time_s, total

CHANGED_RATIO = 0.5
"""Sampled elements that steps change: at least this fraction of the baseline's share."""

IDLE_CLASS_SLACK = 0.25
"""Of a class numbered twice (experts in layers), this fraction may stay idle where the baseline's did not."""


def work_performed(comparison: Comparison, findings: Findings) -> None:
    """A forward and a backward per micro-batch, gradients where the baseline has them, a possible speed."""
    _micro_batches(comparison, findings)
    _changed_samples(comparison, findings)
    _changed_parameters(comparison, findings)
    _possible_speed(comparison, findings)


def _micro_batches(comparison: Comparison, findings: Findings) -> None:
    def events(row: Row) -> tuple[int, int] | None:
        forward = total(row, lambda record: record.counts.forward)
        backward = total(row, lambda record: record.counts.backward)
        return None if forward is None or backward is None else (forward, backward)

    compared = comparison.pairs(findings, "forward and backward passes", "forward", events)
    for index, (old_forward, old_backward), (forward, backward) in compared:
        if (old_forward > 0) > (forward > 0) or (old_backward > 0) > (backward > 0):
            findings.fail(
                f"update {index} ran {forward} forward and {backward} backward passes",
                expected="at least one of each, as in the baseline",
                observed=f"{forward} forward, {backward} backward",
            )
        elif forward * old_backward > backward * old_forward:
            findings.fail(
                f"update {index}: {forward - backward} of {forward} micro-batches had no backward pass",
                expected=f"{old_backward} backward per {old_forward} forward passes",
                observed=f"{backward} backward per {forward} forward passes",
            )
    for index, row in enumerate(comparison.candidate.rows):
        for rank, record in enumerate(row):
            if (
                record.samples is not None
                and record.counts.forward
                and record.samples < record.counts.forward
            ):
                findings.fail(
                    f"rank {rank}, update {index}: {record.counts.forward} forward passes over "
                    f"{record.samples} samples",
                    expected="at least one sample per forward pass",
                    observed=f"{record.samples} samples",
                )
    if compared:
        _, _, (forward, backward) = compared[-1]
        findings.passed(f"{forward} forward and {backward} backward passes per update over all ranks")


def _changed_samples(comparison: Comparison, findings: Findings) -> None:
    def counts(row: Row) -> tuple[int, int] | None:
        steps = [step for record in row for step in record.steps or ()]
        if not row or any(record.steps is None for record in row) or not steps:
            return None
        return sum(step.changed for step in steps), sum(step.sampled for step in steps)

    compared = comparison.pairs(findings, "weights changed by steps", "steps", counts, essential=False)
    old = _share([pair[1] for pair in compared])
    new = _share([pair[2] for pair in compared])
    if old is None or not compared:
        return
    if new is None or new < CHANGED_RATIO * old:
        findings.fail(
            "steps change fewer weights than the baseline's",
            expected=f"{old:.0%} of the sampled weights change",
            observed="none sampled" if new is None else f"{new:.0%} change",
        )
    else:
        findings.passed(f"{new:.0%} of the sampled weights change (baseline {old:.0%})")


def _share(counts: list[tuple[int, int]]) -> float | None:
    sampled = sum(count[1] for count in counts)
    return sum(count[0] for count in counts) / sampled if sampled > 0 else None


def _changed_parameters(comparison: Comparison, findings: Findings) -> None:
    before, after = _moved(comparison, baseline=True), _moved(comparison, baseline=False)
    if isinstance(before, str):
        findings.unseen(f"which parameters training changed: {before}")
        return
    if isinstance(after, str):
        findings.lost("which parameters training changed", after)
        return
    old = Counter(parameter_class(name) for name, moved in before.items() if moved)
    new = Counter(parameter_class(name) for name, moved in after.items() if moved)
    for group, count in sorted(old.items()):
        slack = IDLE_CLASS_SLACK * count if group.count("*") >= 2 else 0.0
        if new[group] < count - slack:
            idle = next(
                (n for n, m in before.items() if m and not after.get(n) and parameter_class(n) == group),
                group,
            )
            findings.fail(
                f"{count - new[group]} of {count} parameters {group} were not trained ({idle})",
                expected=f"{count} parameters changed",
                observed=f"{new[group]} changed",
            )
    frozen = [name for name, moved in before.items() if not moved and after.get(name)]
    if frozen and comparison.updates == len(comparison.baseline.rows):
        findings.note(f"{len(frozen)} parameters changed that the baseline left alone ({frozen[0]})")
    findings.passed(f"{sum(new.values())} parameters trained (baseline {sum(old.values())})")


def _moved(comparison: Comparison, *, baseline: bool) -> dict[str, bool] | str:
    view = comparison.baseline if baseline else comparison.candidate
    start = start_state(view)
    if isinstance(start, str):
        return start
    end = end_state(view, start)
    if isinstance(end, str):
        return end
    moved = {}
    for name in start.parameters.keys() & end.parameters.keys():
        same = start.parameters[name].same_content(end.parameters[name])
        if same is not None:
            moved[name] = not same
    return moved or "no parameter's content was seen at both ends"


def _possible_speed(comparison: Comparison, findings: Findings) -> None:
    context, view = comparison.context, comparison.candidate
    if context.device_peak_flops is None or context.flops_per_update is None:
        findings.unseen("FLOP/s against the device's peak, which is not known")
        return
    ceiling = context.device_peak_flops * max(view.run.world_size, 1)
    times = [time for row in view.rows for time in (step_time_s(row),) if time is not None]
    for index, time in enumerate(times):
        if context.flops_per_update / time > ceiling:
            findings.fail(
                f"update {index} would need {context.flops_per_update / time:.3g} FLOP/s",
                expected=f"at most {ceiling:.3g} FLOP/s, the peak of the devices",
                observed=f"{context.flops_per_update / time:.3g} FLOP/s",
            )
