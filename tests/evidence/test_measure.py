from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.schema.trial import Measurement
from engine.trial.evidence import read_evidence
from engine.trial.measure import Unmeasured, effective_step_time, label_tokens_per_update, measure
from tests.evidence import folders
from tests.invariants import builders as b


def measured(run: b.RunEvidence) -> Measurement:
    result = measure(run)
    assert isinstance(result, Measurement), result
    return result


def test_numbers_from_a_folder(tmp_path: Path) -> None:
    """Every number of the measurement, worked out by hand from the records."""
    evidence = read_evidence(folders.write(tmp_path), folders.plan(tmp_path))
    result = measured(evidence)
    assert result.step_times_s == pytest.approx((0.14, 0.15))
    assert result.step_time_s == pytest.approx(0.145)
    assert result.tokens_per_update == 512
    assert result.tokens_per_s == pytest.approx(512 / 0.145)
    assert label_tokens_per_update(evidence) == 500
    assert result.peak_memory_gib == 5.0
    assert result.memory_metric == "vm_data"
    assert result.cpu_s_per_update == pytest.approx(0.18)
    assert result.losses == pytest.approx((3.5, 3.5, 3.5, 3.5))
    assert result.phases.communication == pytest.approx(0.010)
    assert result.phases.forward == pytest.approx(0.030)
    assert result.phases.data is None
    assert result.start_s == pytest.approx(3.0)
    assert result.warmup_updates == 2
    assert result.probe_share == pytest.approx(0.2 / 250, rel=1e-6)
    assert effective_step_time(result, 100) == pytest.approx(0.145 + 0.03)


@given(st.lists(st.integers(1, 10**10), min_size=b.MEASURED * 2, max_size=b.MEASURED * 2))
@settings(max_examples=50, deadline=None)
def test_step_time_is_the_mean_of_the_slowest_rank(walls: list[int]) -> None:
    """Against a second route: the exact sum of the per-update maxima; a slow update is not hidden."""
    run = b.healthy_run()
    first = b.TOTAL - b.MEASURED
    table = {(rank, first + i): walls[rank * b.MEASURED + i] for rank in range(2) for i in range(b.MEASURED)}
    run = b.with_ranks(
        run,
        lambda rank: rank.model_copy(
            update={
                "updates": tuple(
                    u.model_copy(update={"wall_ns": table.get((rank.rank, u.index), 10**12)})
                    for u in rank.updates
                )
            }
        ),
    )
    slowest = [max(table[0, i], table[1, i]) for i in range(first, b.TOTAL)]
    result = measured(run)
    assert result.step_time_s == pytest.approx(sum(slowest) / b.MEASURED / 1e9)


def test_layout_does_not_change_tokens_or_losses() -> None:
    """Micro-batches and ranks cancel out of tokens and losses."""
    plain, other = measured(b.healthy_run()), measured(b.healthy_run(ranks=4, micro_batches=1))
    assert plain.tokens_per_update == other.tokens_per_update
    assert plain.losses == pytest.approx(other.losses)


def test_cuda_memory_is_the_allocators_peak() -> None:
    """On cuda the private data of the process does not count."""
    memory = b.MemoryReading(
        vm_data_bytes=90 << 30,
        vm_hwm_bytes=None,
        vm_rss_bytes=None,
        cuda_allocated_peak_bytes=3 << 30,
        cuda_reserved_peak_bytes=4 << 30,
    )
    run = b.with_update_fields(b.healthy_run().model_copy(update={"device": "cuda"}), memory=memory)
    assert measured(run).peak_memory_gib == 3.0
    assert measured(run).memory_metric == "cuda_allocated"


def test_short_runs_are_unmeasured_unless_part_is_enough() -> None:
    """A run cut short has no numbers, except for a caller who accepts fewer updates."""
    run = b.with_ranks(b.healthy_run(), lambda rank: rank.model_copy(update={"updates": rank.updates[:5]}))
    assert isinstance(measure(run), Unmeasured)
    part = measure(run, minimum_updates=3)
    assert isinstance(part, Measurement)
    assert len(part.step_times_s) == 3
    assert isinstance(measure(run, minimum_updates=4), Unmeasured)


def test_unseen_is_never_zero() -> None:
    """Tokens, phases, memory and start-up that nobody saw stay None."""
    no_memory = b.MemoryReading(
        vm_data_bytes=None,
        vm_hwm_bytes=None,
        vm_rss_bytes=None,
        cuda_allocated_peak_bytes=None,
        cuda_reserved_peak_bytes=None,
    )
    phases = b.PhaseTimes(
        forward=None, backward=None, optimizer=None, data=None, eval=None, communication=None
    )
    run = b.with_update_fields(
        b.healthy_run(), tokens=None, phases=phases, memory=no_memory, arrived_ns=None, loss=None
    )
    result = measured(b.with_agent(run, peak_vm_data_bytes=None))
    assert result.tokens_per_s is None
    assert result.phases.forward is None
    assert result.peak_memory_gib is None
    assert result.start_s is None
    assert result.losses == ()
    assert isinstance(measure(b.with_update_fields(run, wall_ns=None)), Unmeasured)
