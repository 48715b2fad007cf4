"""Bands that equivalent runs of the unchanged job set, and the verdicts that follow from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.diagnosis.bands import end_state_band, grad_norm_band, loss_band
from engine.diagnosis.diagnose import diagnose
from engine.invariants.check import check_invariants
from engine.invariants.context import InvariantContext
from engine.schema.evidence import ParameterRecord, RunEvidence
from engine.schema.task import TaskFile
from engine.schema.trial import InvariantStatus, Measurement
from engine.trial.measure import measure
from tests.attribution.runs import rank, run
from tests.invariants import builders as b

PLAIN = b.healthy_run()


def scaled_loss(factor: float) -> RunEvidence:
    """The run with every loss multiplied."""
    return b.with_updates(
        HEALTHY,
        lambda record: record.model_copy(update={"loss": tuple(factor * part for part in record.loss or ())}),
    )


def scaled_norm(factor: float) -> RunEvidence:
    """The run with every gradient norm multiplied."""
    return b.with_updates(
        HEALTHY,
        lambda record: record.model_copy(
            update={
                "grad_norm": factor * (record.grad_norm or 0.0),
                "clip_norms": tuple(factor * norm for norm in record.clip_norms or ()),
            }
        ),
    )


def scaled_end(factor: float, base: RunEvidence | None = None) -> RunEvidence:
    """The run with the norm of every parameter at the end multiplied."""

    def scale(record: ParameterRecord) -> ParameterRecord:
        squares = None if record.sumsq is None else record.sumsq * factor**2
        return record.model_copy(update={"sumsq": squares})

    return b.with_parameters(base or HEALTHY, scale, when="end")


HEALTHY = scaled_end(1.4, PLAIN)
"""Its weights moved far, so that a small difference at the end is no large one in how far they moved."""


def shorter(base: RunEvidence) -> RunEvidence:
    """The run without its last update."""
    return b.with_ranks(base, lambda each: each.model_copy(update={"updates": each.updates[:-1]}))


def learnt(*runs: RunEvidence) -> InvariantContext:
    """Bands as the diagnosis of these runs gives them."""
    measured = [each for each in map(measure, runs) if isinstance(each, Measurement)]
    found = diagnose(
        baselines={f"b{number}": each for number, each in enumerate(runs)},
        measurements=measured,
        perturbed=[],
        settings=TaskFile.model_validate({"task": {"name": "t", "command": ["train.py"]}}),
        pairs=6,
    )
    return InvariantContext(
        scope_findings=(),
        loss_band=found.loss_band,
        grad_norm_band=found.grad_norm_band,
        end_state_band=found.end_state_band,
    )


def status(name: str, candidate: RunEvidence, context: InvariantContext) -> InvariantStatus:
    """One verdict against the healthy run."""
    return next(each.status for each in check_invariants(HEALTHY, candidate, context) if each.name == name)


@pytest.mark.parametrize(
    ("name", "scaled", "spread", "inside", "outside"),
    [
        ("loss_trajectory", scaled_loss, 1.02, 1.015, 1.025),
        ("loss_trajectory", scaled_loss, 1.02, 0.985, 0.975),
        ("gradient_health", scaled_norm, 1.10, 1.25, 1.35),
        ("update_cadence", scaled_end, 1.01, 1.025, 1.035),
    ],
)
def test_a_candidate_is_judged_by_the_spread_of_the_unchanged_job(
    name: str, scaled: object, spread: float, inside: float, outside: float
) -> None:
    """The diagnosis' band is relative, at any size of the loss; norms get three times their spread."""
    assert callable(scaled)
    context = learnt(HEALTHY, scaled(spread))
    assert status(name, scaled(inside), context) is InvariantStatus.PASSED
    assert status(name, scaled(outside), context) is InvariantStatus.FAILED
    assert status(name, scaled(inside), learnt(HEALTHY, HEALTHY)) is InvariantStatus.FAILED


def test_bands_that_nobody_saw_are_none() -> None:
    """One run, hidden norms or runs of different lengths give no band, which is not a band of zero."""
    hidden = b.with_update_fields(HEALTHY, grad_norm=None)
    assert grad_norm_band([hidden, hidden]) is None
    assert grad_norm_band([HEALTHY]) is None
    assert end_state_band([HEALTHY, shorter(scaled_end(1.5))]) is None
    assert end_state_band([HEALTHY, HEALTHY]) == 0.0
    assert end_state_band([HEALTHY, shorter(scaled_end(1.5)), scaled_end(1.01)]) == pytest.approx(0.01)
    assert grad_norm_band([HEALTHY, scaled_norm(1.1)]) == pytest.approx(0.1)


def test_micro_batches_do_not_change_the_band() -> None:
    """The loss of an update is the sum over its micro-batches, as in the check."""
    assert loss_band([PLAIN, b.healthy_run(micro_batches=1)]) == pytest.approx(0.0, abs=1e-12)


@given(st.lists(st.lists(st.floats(-10, 10), min_size=1, max_size=5), min_size=2, max_size=4))
def test_the_loss_band_covers_every_pair_of_runs(trajectories: list[list[float]]) -> None:
    """The band is symmetric in the runs, at most 2, and no pair deviates more."""
    runs = [run(rank(0, updates=tuple(each)), ranks_per_node=1) for each in trajectories]
    band = loss_band(runs)
    assert band == loss_band(reversed(runs))
    assert 0.0 <= band <= 2.0
    for one in trajectories:
        for other in trajectories:
            for a, b_ in zip(one, other, strict=False):
                assert abs(a - b_) <= band * max(abs(a), abs(b_)) * (1 + 1e-12)
    assert loss_band(runs[:1]) == 0.0


def test_a_loss_that_a_rank_did_not_show_sets_no_band() -> None:
    """Half of a loss is no loss."""
    whole = run(rank(0, updates=(2.0, 3.0)), rank(1, updates=(4.0, 5.0)))
    part = run(rank(0, updates=(2.0, 9.0)), rank(1, updates=(4.0, None)))
    assert loss_band([whole, part]) == 0.0
