from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import nct, t

from engine.diagnosis.bottleneck import classify_bottleneck
from engine.diagnosis.diagnose import diagnose
from engine.diagnosis.flops import (
    ParameterCount,
    count_parameters,
    flops_per_update,
    model_flops_utilisation,
)
from engine.diagnosis.phases import typical_phases, unexplained
from engine.diagnosis.step_noise import estimate_noise
from engine.errors import BaselineError
from engine.schema.evidence import ParameterRecord, SignatureRecord
from engine.schema.task import ModelSection, TaskFile
from engine.schema.trial import Measurement, Phases
from tests.attribution.runs import blank, rank, run

NO_PHASES = Phases(forward=None, backward=None, optimizer=None, communication=None, data=None)


def measurement(*times: float, phases: Phases = NO_PHASES, peak: float | None = None) -> Measurement:
    """A run with the given step times."""
    median = float(np.median(times))
    return Measurement(
        step_time_s=median,
        step_times_s=times,
        cpu_s_per_update=1.0,
        tokens_per_update=4096,
        tokens_per_s=4096 / median,
        peak_memory_gib=peak,
        memory_metric=None,
        phases=phases,
        losses=(),
        start_s=None,
        warmup_updates=2,
        probe_share=0.001,
    )


def phases(forward=0.3, backward=0.5, optimizer=0.1, communication=0.1, data=0.05) -> Phases:
    """Phases of an update of one second; 0.05 s stay unexplained."""
    return Phases(
        forward=forward, backward=backward, optimizer=optimizer, communication=communication, data=data
    )


def task(**sections: object) -> TaskFile:
    """A task file."""
    return TaskFile.model_validate({"task": {"name": "t", "command": ["train.py"]}, **sections})


def signature(*parameters: tuple[str, int, bool, str | None]) -> SignatureRecord:
    """A signature of one-dimensional parameters: name, elements, trainable, tied to."""
    return SignatureRecord(
        when="start",
        model="M",
        parameters=tuple(
            blank(ParameterRecord, name=name, shape=(size,), trainable=trainable, tied_to=tied)
            for name, size, trainable, tied in parameters
        ),
        buffers=(),
        unavailable=None,
    )


def test_a_diagnosis_of_three_runs():
    """The record holds medians, the widest peak, the remainder and the band that the perturbation sets."""
    losses = [(8.0, 7.0), (8.0, 7.0), (8.0, 7.007)]
    runs = {f"b{i}": run(rank(0, updates=each), rank(1, updates=each)) for i, each in enumerate(losses)}
    found = diagnose(
        baselines=runs,
        measurements=[measurement(1.0, 1.0, 1.0, phases=phases(), peak=peak) for peak in (0.4, 0.5, 0.45)],
        perturbed=[run(rank(0, updates=(8.08, 7.0)), rank(1, updates=(8.08, 7.0)))],
        settings=task(allocation={"memory_limit_gib": 1.0, "device": "cpu", "gpus_per_node": 2}),
        pairs=6,
    )
    assert (found.step_time_s, found.tokens_per_s, found.peak_memory_gib) == (1.0, 4096.0, 0.5)
    assert found.phases == phases()
    assert found.unexplained_s == pytest.approx(0.05)
    assert found.loss_band == pytest.approx(0.08 / 8.08)
    assert found.bottleneck == "compute"
    assert found.mfu is None
    assert found.baseline_trials == ("b0", "b1", "b2")
    assert found.noise.runs == 3


def test_too_few_runs_are_the_baselines_error():
    """Without two measured runs there is no noise, and the error says what to look at."""
    with pytest.raises(BaselineError, match="only 1 of 2") as caught:
        diagnose(baselines={}, measurements=[measurement(1.0), None], perturbed=[], settings=task(), pairs=6)
    assert "launcher.log" in str(caught.value)


def test_a_phase_that_one_run_could_not_see_is_unknown():
    """A median over some of the runs would hide that the phase is not always visible."""
    seen = typical_phases([measurement(1.0, phases=phases()), measurement(1.0, phases=phases(data=None))])
    assert seen.data is None
    assert seen.forward == 0.3
    assert unexplained(1.0, seen) == pytest.approx(0.1)
    assert unexplained(1.0, NO_PHASES) is None


@given(
    st.lists(st.lists(st.floats(0.1, 10.0), min_size=3, max_size=12), min_size=2, max_size=5),
    st.integers(1, 12),
)
def test_noise_has_a_floor_and_shrinks_with_pairs(runs: list[list[float]], pairs: int):
    """Noise between runs is never below the error of one mean; more pairs tell smaller effects."""
    measured = [measurement(*times) for times in runs]
    few, more = estimate_noise(measured, pairs), estimate_noise(measured, pairs + 1)
    spread = float(np.std([math.log(np.mean(times)) for times in runs], ddof=1))
    shortest = min(map(len, runs))
    assert few.between >= spread
    assert few.between**2 * shortest >= few.within**2 * (1 - 1e-12)
    assert (few.dof, few.runs) == (len(runs) - 1, len(runs))
    assert more.smallest_effect <= few.smallest_effect


def test_the_smallest_effect_is_found_four_times_out_of_five():
    """By the exact power (non-central t) the planned effect is found with probability about 0.8."""
    measured = [measurement(*[math.exp(shift)] * 20) for shift in (-0.02, 0.0, 0.02)]
    noise = estimate_noise(measured, 5)
    dof = noise.dof + 4
    scale = noise.between * math.sqrt(2 / 5)
    power = nct.sf(t.ppf(0.995, dof), dof, math.log1p(noise.smallest_effect) / scale)
    assert power == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(
    ("given_phases", "rest", "peak", "kind", "says"),
    [
        (phases(data=0.3), 0.0, None, "io", "30% of an update is waiting for data"),
        (phases(communication=0.4, data=0.3), 0.0, None, "communication", "40%"),
        (phases(), 0.5, None, "host", "50%"),
        (phases(), 0.05, 0.9, "memory", "0.90 GiB is 90% of 1.00 GiB"),
        (phases(), 0.05, 0.5, "compute", "largest wait"),
        (NO_PHASES, None, None, "compute", "no phase was visible"),
    ],
)
def test_bottlenecks(given_phases: Phases, rest: float | None, peak: float | None, kind: str, says: str):
    """The largest wait above a fifth is named first, then a full memory, then arithmetic."""
    finding = classify_bottleneck(1.0, given_phases, rest, peak, 1.0)
    assert finding.kind == kind
    assert says in finding.reason


def test_flops_of_a_known_model():
    """GPT-3 (175 B, 96 layers, 12,288 wide, 2,048 tokens): 6 N + 12 L H S a token, by hand."""
    model = ModelSection(parameters=175_000_000_000, layers=96, hidden=12288, sequence=2048)
    flops, reason = flops_per_update(1000, model, None)
    assert flops == pytest.approx(1000 * (1.05e12 + 2.899e10), rel=1e-3)
    assert reason is None


def test_frozen_parameters_cost_no_weight_gradients():
    """Where the probe counted, a frozen parameter costs 4 operations a token instead of 6."""
    flops, _ = flops_per_update(10, ModelSection(), ParameterCount(trainable=100, frozen=1000))
    assert flops == 10 * (600 + 4000)


@pytest.mark.parametrize(
    ("tokens", "model", "says"),
    [
        (None, ModelSection(parameters=10), "tokens"),
        (10, ModelSection(parameters=10, experts=8), "active_parameters"),
        (10, ModelSection(), "parameters"),
    ],
)
def test_flops_that_nobody_can_know(tokens: int | None, model: ModelSection, says: str):
    """A missing number gives a reason, never zero."""
    flops, reason = flops_per_update(tokens, model, None)
    assert flops is None
    assert says in (reason or "")


def test_parameters_are_counted_once_over_ranks_and_ties():
    """Ranks that hold the same model do not double it; a pipeline's ranks add up; ties are free."""
    first = rank(0).model_copy(
        update={"start_signature": signature(("a", 10, True, None), ("b", 5, False, None))}
    )
    second = rank(1).model_copy(
        update={
            "start_signature": signature(("a", 10, True, None), ("c", 7, True, "a"), ("d", 2, True, None))
        }
    )
    assert count_parameters(run(first, second)) == ParameterCount(trainable=12, frozen=5)
    assert count_parameters(run(rank(0))) is None


def test_utilisation_needs_the_exact_device():
    """Half of an H100's peak is 0.5; a name that is only similar has no utilisation, with a reason."""
    assert model_flops_utilisation(8 * 989.4e12, None, 2.0, "NVIDIA H100 80GB HBM3", 8) == (0.5, None)
    for name in (None, "NVIDIA H100", "nvidia h100 80gb hbm3"):
        share, reason = model_flops_utilisation(1e12, None, 1.0, name, 1)
        assert share is None
        assert reason
    assert model_flops_utilisation(None, "no tokens", 1.0, "NVIDIA H200", 1) == (None, "no tokens")
