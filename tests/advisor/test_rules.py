from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.advisor.belief import UNKNOWN_MEMORY_SD, UNKNOWN_SPEED_SD, believe
from engine.advisor.compatibility import clashes, unmet_requirements
from engine.advisor.rules import advise
from engine.mechanisms.table import load_mechanisms
from engine.schema.advice import Idea
from engine.schema.base import Scalar
from engine.schema.diagnosis import Diagnosis, NoiseEstimate
from engine.schema.task import TaskFile
from engine.schema.trial import Phases
from engine.task.expressions import parse
from engine.task.space import ParameterSpace, SearchParameter

TABLE = load_mechanisms()
ANY_CHANGE = st.sampled_from(sorted(TABLE)).flatmap(
    lambda name: st.tuples(
        st.just(TABLE[name]), st.sampled_from(TABLE[name].values), st.sampled_from(TABLE[name].values)
    )
)


def space(
    values: dict[str, list[Scalar]], *, require: tuple[str, ...] = (), when: dict[str, str] | None = None
) -> ParameterSpace:
    """Parameters by mechanism; the first value is the baseline."""
    conditions = when or {}
    return ParameterSpace(
        parameters=tuple(
            SearchParameter(
                mechanism=name,
                values=tuple(options),
                initial=tuple(options),
                default=options[0],
                literals={option: option for option in options},
                when=parse(conditions[name]) if name in conditions else None,
                bindings=(),
            )
            for name, options in values.items()
        ),
        derived=(),
        constants={"world_size": 2},
        requirements=tuple(parse(text) for text in require),
        order=tuple(values),
        file="infrarsi.toml",
    )


def diagnosis(peak: float | None = 0.4, limit: float | None = 1.0, **phases: float | None) -> Diagnosis:
    """One second an update; phases in seconds."""
    seconds = {"forward": 0.3, "backward": 0.6, "optimizer": 0.02, "communication": 0.01, "data": 0.01}
    return Diagnosis(
        step_time_s=1.0,
        tokens_per_s=None,
        mfu=None,
        mfu_reason="unknown",
        flops_per_update=None,
        peak_memory_gib=peak,
        memory_limit_gib=limit,
        noise=NoiseEstimate(within=0.01, between=0.01, dof=2, runs=3, smallest_effect=0.05),
        phases=Phases(**(seconds | phases)),
        unexplained_s=0.0,
        bottleneck="compute",
        bottleneck_reason="most of the update is forward and backward",
        baseline_trials=("b001",),
        loss_band=0.0,
    )


def task(device: str = "cuda", **constraints: object) -> TaskFile:
    """A task file with the given device and constraints."""
    return TaskFile.model_validate(
        {
            "task": {"name": "t", "command": ["train.py"]},
            "allocation": {"device": device},
            "constraints": constraints,
        }
    )


def only(ideas: list[Idea], mechanism: str, value: Scalar) -> Idea:
    """The single-change idea of one value."""
    return next(idea for idea in ideas if idea.changes == {mechanism: value})


def combination(ideas: list[Idea]) -> dict[str, Scalar]:
    """Changes of the one combined idea; empty without one."""
    combined = [idea.changes for idea in ideas if len(idea.changes) > 1]
    assert len(combined) <= 1
    return combined[0] if combined else {}


def test_an_idea_is_relative_to_the_tasks_own_baseline():
    """The table speaks of its default; a task that recomputes all gains what the table says it costs."""
    ideas = advise(diagnosis(), space({"activation_recompute": ["full", "none"]}), TABLE, task())
    (idea,) = ideas
    assert idea.log_speedup_mean == pytest.approx(0.2815)
    assert idea.log_speedup_sd == pytest.approx(0.119)
    assert idea.log_memory_mean == pytest.approx(-math.log(0.67))
    assert idea.relieves == ("compute",)
    assert "activation_recompute: none instead of full" in idea.reason


@given(ANY_CHANGE, st.sampled_from(["cuda", "cpu"]))
def test_a_change_and_its_way_back_cancel_in_memory(change, device: str):
    """Going there and back changes nothing: means are antisymmetric, spreads are equal."""
    mechanism, one, other = change
    there = believe(mechanism, one, other, diagnosis(), device)
    back = believe(mechanism, other, one, diagnosis(), device)
    assert there.memory == pytest.approx(-back.memory)
    assert there.memory_sd == back.memory_sd
    assert there.speed_sd > 0


@given(ANY_CHANGE, st.floats(0, 0.9), st.floats(0, 0.9))
def test_no_belief_beats_amdahl(change, data: float, communication: float):
    """What only eases data loading or communication cannot gain more than these take."""
    mechanism, one, other = change
    belief = believe(mechanism, one, other, diagnosis(data=data, communication=communication), "cuda")
    shares = {("io",): data, ("communication",): communication}
    if mechanism.relieves in shares:
        assert math.exp(belief.speed) <= 1 / (1 - shares[mechanism.relieves]) + 1e-9


def test_an_invisible_phase_bounds_nothing():
    """Where communication cannot be seen, the table's belief stands."""
    belief = believe(TABLE["overlap_grad_reduce"], False, True, diagnosis(communication=None), "cuda")
    assert belief.speed == pytest.approx(0.1264)


def test_what_the_table_does_not_know_is_a_wide_guess():
    """Free names and unknown values have no mean and a wide spread, and say so."""
    ideas = advise(
        diagnosis(), space({"my_knob": [1, 2], "attention_backend": ["sdpa", "mine"]}), TABLE, task()
    )
    for name, value in (("my_knob", 2), ("attention_backend", "mine")):
        idea = only(ideas, name, value)
        assert (idea.log_speedup_mean, idea.log_speedup_sd) == (0.0, UNKNOWN_SPEED_SD)
        assert (idea.log_memory_mean, idea.log_memory_sd) == (0.0, UNKNOWN_MEMORY_SD)
        assert idea.source == "guess"
    assert combination(ideas) == {}


def test_the_table_is_half_believed_on_a_cpu():
    """Half of the mean, and a wider spread than on the devices the table speaks of."""
    parameters = space({"compute_dtype": ["fp32", "bf16"]})
    on_gpu, on_cpu = (
        only(
            advise(diagnosis(), parameters, TABLE, task(device, allow=["compute_dtype"])),
            "compute_dtype",
            "bf16",
        )
        for device in ("cuda", "cpu")
    )
    assert on_cpu.log_speedup_mean == pytest.approx(on_gpu.log_speedup_mean / 2)
    assert on_cpu.log_speedup_sd > on_gpu.log_speedup_sd


def test_the_combination_takes_what_helps_and_fits():
    """Everything with a gain is combined, as far as the memory goes."""
    parameters = space(
        {
            "micro_batch_size": [1, 2, 4, 8],
            "activation_recompute": ["full", "none"],
            "attention_backend": ["eager", "sdpa"],
            "optimizer_offload": ["none", "cpu"],
        }
    )
    roomy = combination(advise(diagnosis(peak=0.4), parameters, TABLE, task()))
    assert roomy["attention_backend"] == "sdpa"
    assert roomy["activation_recompute"] == "none"
    assert roomy["micro_batch_size"] == 4
    assert "optimizer_offload" not in roomy
    tight = combination(advise(diagnosis(peak=0.95), parameters, TABLE, task()))
    assert tight["attention_backend"] == "sdpa"
    assert "micro_batch_size" not in tight


@given(st.floats(0.05, 2.0), st.floats(0.0, 0.5))
def test_the_combination_keeps_the_headroom(peak: float, headroom: float):
    """The expected peak of a combination keeps the headroom, or lies below the baseline's own."""
    parameters = space(
        {"micro_batch_size": [1, 2, 4, 8], "activation_recompute": ["full", "none"], "cuda_graphs": ["none"]}
        | {"attention_backend": ["eager", "sdpa"], "compile_scope": ["off", "model"]}
    )
    ideas = advise(diagnosis(peak=peak), parameters, TABLE, task(memory_headroom=headroom))
    for idea in ideas:
        if len(idea.changes) > 1:
            assert peak * math.exp(idea.log_memory_mean) <= max(1.0 - headroom, peak) * (1 + 1e-9)


def test_requirements_of_the_space_hold_for_the_combination():
    """A combination that the task forbids is not proposed."""
    values: dict[str, list[Scalar]] = {
        "micro_batch_size": [1, 4],
        "attention_backend": ["eager", "sdpa"],
        "compile_scope": ["off", "model"],
    }
    parameters = space(values, require=("micro_batch_size * world_size <= 2",))
    combined = combination(advise(diagnosis(), parameters, TABLE, task()))
    assert "micro_batch_size" not in combined
    assert len(combined) == 2


def test_a_change_without_effect_is_not_combined():
    """A parameter whose condition does not hold in the combination stays at its default."""
    values: dict[str, list[Scalar]] = {
        "compile_mode": ["default", "max-autotune"],
        "attention_backend": ["eager", "sdpa"],
        "fused_norm": [False, True],
    }
    never = space(values, when={"compile_mode": "attention_backend == 'eager'"})
    ideas = advise(diagnosis(), never, TABLE, task())
    assert "compile_mode" not in combination(ideas) or "attention_backend" not in combination(ideas)


def test_a_change_comes_with_what_it_requires():
    """A mode of compilation needs compilation, which comes later in the order; both are combined."""
    values: dict[str, list[Scalar]] = {
        "compile_mode": ["default", "reduce-overhead"],
        "compile_scope": ["off", "region"],
    }
    assert combination(advise(diagnosis(), space(values), TABLE, task())) == {
        "compile_mode": "reduce-overhead",
        "compile_scope": "region",
    }


def test_conflicts_of_the_table_are_read_from_their_words():
    """A conflict needs a value that its words name, and no other value of the other side."""
    assert clashes(TABLE, {"attention_backend": "flex", "compile_scope": "off"})
    assert not clashes(TABLE, {"attention_backend": "flex", "compile_scope": "model"})
    assert clashes(TABLE, {"kernel_suite": "liger", "compile_scope": "model"})
    assert not clashes(TABLE, {"kernel_suite": "native", "compile_scope": "model"})
    assert not clashes(TABLE, {"activation_recompute": "full", "compile_scope": "model"})
    assert clashes(TABLE, {"cuda_graphs": "per_layer", "shape_policy": "dynamic"})


@pytest.mark.parametrize(
    ("mechanism", "configuration", "met"),
    [
        ("compile_mode", {"compile_scope": "off"}, False),
        ("compile_mode", {"compile_scope": "region"}, True),
        ("compile_mode", {}, True),
        ("overlap_param_gather", {"dp_shard_stage": "zero2"}, False),
        ("overlap_param_gather", {"dp_shard_stage": "zero3"}, True),
        ("sequence_parallel", {"tensor_parallel_size": 1}, False),
        ("sequence_parallel", {"tensor_parallel_size": 2}, True),
        ("tp_comm_overlap", {"tensor_parallel_size": 2, "sequence_parallel": True}, True),
        ("tp_comm_overlap", {"tensor_parallel_size": 2, "sequence_parallel": False}, False),
    ],
)
def test_requirements_of_the_table(mechanism: str, configuration: dict, met: bool):
    """`mech:` requirements are checked against the configuration; what it does not name is taken as met."""
    assert (unmet_requirements(TABLE[mechanism], configuration) == []) is met


def test_locked_and_imprecise_values_are_never_proposed():
    """Locked mechanisms need the task's leave; precision never goes below the floor."""
    values: dict[str, list[Scalar]] = {
        "compute_dtype": ["bf16", "fp16", "fp32"],
        "low_precision_recipe": ["none", "mxfp8"],
        "comm_compression": ["fp32", "bf16", "lowrank"],
    }
    names = ["compute_dtype", "low_precision_recipe", "comm_compression"]
    locked = [idea.changes for idea in advise(diagnosis(), space(values), TABLE, task())]
    assert locked == [{"comm_compression": "bf16"}]
    allowed = advise(diagnosis(), space(values), TABLE, task(allow=names, precision_floor="bf16"))
    proposed = {value for idea in allowed for value in idea.changes.items()}
    assert ("compute_dtype", "fp16") not in proposed
    assert ("low_precision_recipe", "mxfp8") not in proposed
    assert ("compute_dtype", "fp32") in proposed


def test_every_value_but_the_baseline_has_one_idea_in_a_fixed_order():
    """Equal inputs give equal ideas, best first, each value once."""
    parameters = space({"micro_batch_size": [2, 1, 4], "fused_norm": [False, True], "knob": [0, False]})
    first, second = (advise(diagnosis(), parameters, TABLE, task()) for _ in range(2))
    assert first == second
    singles = [idea for idea in first if len(idea.changes) == 1]
    assert len(singles) == 4
    gains = [idea.log_speedup_mean for idea in singles]
    assert gains == sorted(gains, reverse=True)
