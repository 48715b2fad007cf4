from __future__ import annotations

from pathlib import Path

import pytest

from engine.invariants.check import check_invariants, self_consistency
from engine.invariants.context import InvariantContext
from engine.schema.evidence import RunEvidence
from engine.schema.trial import InvariantStatus, Measurement
from engine.trial.measure import measure
from tests.evidence import trials

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

CONTEXT = InvariantContext(scope_findings=())
TIMING = {"clock_agreement", "steady_state", "allocation_identity"}
"""Verdicts that another job on the same machine can spoil; the honest runs are judged without them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trials")


@pytest.fixture(scope="module")
def baseline(folder: Path) -> RunEvidence:
    return trials.run_variant(folder, "baseline")


def failed(baseline: RunEvidence, candidate: RunEvidence) -> set[str]:
    results = check_invariants(baseline, candidate, CONTEXT)
    return {result.name for result in results if result.status is InvariantStatus.FAILED}


def test_a_real_baseline_is_measured_and_consistent(baseline: RunEvidence) -> None:
    """Two gloo ranks under the agent: complete, clean, with every number that a CPU run can show."""
    assert baseline.notes == ()
    assert [rank.protocol_errors for rank in baseline.ranks] == [(), ()]
    result = measure(baseline)
    assert isinstance(result, Measurement)
    assert result.tokens_per_update == 1024
    assert result.start_s is not None
    assert result.peak_memory_gib is not None
    assert len(result.losses) == trials.TOTAL
    verdicts = {each.name: each.status for each in self_consistency(baseline)}
    assert all(status is InvariantStatus.PASSED for name, status in verdicts.items() if name not in TIMING)


@pytest.mark.parametrize(
    ("variant", "ranks", "cpus"),
    [("large_micro_batch", 2, 1), ("baseline", 1, 2), ("bf16", 2, 1), ("zero1", 2, 1), ("fsdp", 2, 1)],
)
def test_honest_variants_fail_nothing(
    baseline: RunEvidence, folder: Path, variant: str, ranks: int, cpus: int
) -> None:
    """Another micro-batch, rank count, precision, or sharding of the same training is accepted."""
    candidate = trials.run_variant(folder, variant, ranks=ranks, cpus_per_rank=cpus)
    results = {result.name: result for result in check_invariants(baseline, candidate, CONTEXT)}
    judged = [result for name, result in results.items() if name not in TIMING]
    assert [
        (result.name, result.reason) for result in judged if result.status is not InvariantStatus.PASSED
    ] == []


@pytest.mark.parametrize(
    ("variant", "caught_by"),
    [
        ("half_sequence", {"data_identity", "tokens_per_update", "loss_trajectory"}),
        ("skip_micro_batches", {"data_identity", "tokens_per_update", "update_cadence", "loss_trajectory"}),
        ("forward_only", {"work_performed", "loss_trajectory"}),
        ("skip_layer", {"work_performed", "loss_trajectory"}),
        ("learning_rate", {"learning_rate_trace", "loss_trajectory"}),
    ],
)
def test_cheats_are_caught(baseline: RunEvidence, folder: Path, variant: str, caught_by: set[str]) -> None:
    """Less or other work than the baseline's fails the invariants that guard it."""
    assert caught_by <= failed(baseline, trials.run_variant(folder, variant))
