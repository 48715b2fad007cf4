"""A training job on paper: eleven knobs, an out-of-memory cliff, conflicts, and seeded noise."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from engine.schema.base import Scalar
from engine.schema.trial import Candidate, FailureKind, OutcomeKind, TrialKind
from engine.search.view import Budget, Effect, Observation, Proposal, SearchInput, Suggestion
from engine.task.expressions import parse
from engine.task.space import DerivedParameter, ParameterSpace, SearchParameter

CAPACITY_GIB = 78.0
NOISE_SD = 0.012
GPUS = 8

KNOBS: dict[str, tuple[Scalar, ...]] = {
    "tensor_parallel_size": (4, 1, 2),
    "dp_shard_stage": ("zero1", "zero2", "zero3"),
    "micro_batch_size": (1, 2, 4, 8),
    "activation_recompute": ("full", "selective", "none"),
    "compile_scope": ("off", "model"),
    "attention_backend": ("sdpa", "flash2", "flex"),
    "kernel_suite": ("native", "liger"),
    "overlap_grad_reduce": (False, True),
    "optimizer_impl": ("foreach", "fused"),
    "comm_bucket_size": (25, 100),
    "dataloader_workers": (2, 8),
}

_GAIN: dict[str, dict[Scalar, float]] = {
    "tensor_parallel_size": {1: 0.16, 2: 0.12},
    "dp_shard_stage": {"zero2": -0.01, "zero3": -0.06},
    "micro_batch_size": {2: 0.08, 4: 0.13, 8: 0.15},
    "activation_recompute": {"selective": 0.18, "none": 0.26},
    "compile_scope": {"model": 0.10},
    "attention_backend": {"flash2": 0.09, "flex": 0.05},
    "kernel_suite": {"liger": 0.05},
    "overlap_grad_reduce": {True: 0.06},
    "optimizer_impl": {"fused": 0.03},
    "comm_bucket_size": {100: 0.02},
    "dataloader_workers": {8: 0.015},
}


@dataclass(frozen=True)
class Truth:
    """What a configuration really does."""

    kind: FailureKind | None
    log_speedup: float
    memory_gib: float
    implicated: tuple[str, ...] = ()


def make_space(
    knobs: Mapping[str, tuple[Scalar, ...]] | None = None,
    initial: Mapping[str, tuple[Scalar, ...]] | None = None,
    requirements: tuple[str, ...] = (),
    conditions: Mapping[str, str] | None = None,
) -> ParameterSpace:
    """A real parameter space; the first value of a knob is its default."""
    knobs = KNOBS if knobs is None else knobs
    whens = conditions or {}
    parameters = tuple(
        SearchParameter(
            mechanism=name,
            values=values,
            initial=(initial or {}).get(name, values),
            default=values[0],
            literals={value: value for value in values},
            when=parse(whens[name]) if name in whens else None,
            bindings=(),
        )
        for name, values in knobs.items()
    )
    derived: tuple[DerivedParameter, ...] = ()
    if "tensor_parallel_size" in knobs and "micro_batch_size" in knobs:
        expression = parse("global_batch // (micro_batch_size * (world_size // tensor_parallel_size))")
        derived = (DerivedParameter("gradient_accumulation", expression, None, ()),)
    unconditional = [name for name in knobs if name not in whens]
    order = (*unconditional, *whens, *(entry.mechanism for entry in derived))
    return ParameterSpace(
        parameters=parameters,
        derived=derived,
        constants={"world_size": GPUS, "nodes": 1, "gpus_per_node": GPUS, "global_batch": 32},
        requirements=tuple(parse(text) for text in requirements),
        order=order,
        file="infrarsi.toml",
    )


def truth(configuration: Mapping[str, Scalar]) -> Truth:
    """Speed, memory and conflicts of a configuration of KNOBS."""
    get = configuration.__getitem__
    compiled, attention = get("compile_scope") == "model", get("attention_backend")
    if attention == "flex" and not compiled:
        return Truth(FailureKind.CONFIG_CONFLICT, 0.0, 0.0, ("attention_backend",))
    if attention == "flex" and get("kernel_suite") == "liger":
        return Truth(FailureKind.CONFIG_CONFLICT, 0.0, 0.0, ("attention_backend", "kernel_suite"))
    if get("dp_shard_stage") == "zero3" and get("overlap_grad_reduce"):
        return Truth(FailureKind.CONFIG_CONFLICT, 0.0, 0.0)
    memory = _memory(configuration)
    gain = sum(effects.get(get(name), 0.0) for name, effects in _GAIN.items())
    if compiled and attention == "flex":
        gain += 0.06
    if get("activation_recompute") == "none" and get("micro_batch_size") == 8:
        gain -= 0.04
    kind = FailureKind.OOM_GPU if memory > CAPACITY_GIB else None
    return Truth(kind, gain, memory)


def _memory(configuration: Mapping[str, Scalar]) -> float:
    get = configuration.__getitem__
    tp, mbs = float(get("tensor_parallel_size")), float(get("micro_batch_size"))
    shard = {"zero1": 1.0, "zero2": 0.8, "zero3": 0.45}[str(get("dp_shard_stage"))]
    keep = {"full": 0.12, "selective": 0.55, "none": 1.0}[str(get("activation_recompute"))]
    attention = {"sdpa": 1.0, "flash2": 0.8, "flex": 0.85}[str(get("attention_backend"))]
    liger = 0.75 if get("kernel_suite") == "liger" else 1.0
    compiled = 0.9 if get("compile_scope") == "model" else 1.0
    return 4.0 + 64.0 * shard / tp**0.6 + 26.0 * mbs * keep * attention * liger * compiled / tp


def optimum(space: ParameterSpace, headroom: float = 0.04) -> float:
    """Largest true log speed-up among valid configurations that keep the headroom."""
    return max(value for _, value in feasible(space, headroom))


def feasible(space: ParameterSpace, headroom: float = 0.04) -> list[tuple[dict[str, Scalar], float]]:
    """Every valid configuration that runs and keeps the headroom."""
    names = [parameter.mechanism for parameter in space.parameters]
    found = []
    for index in np.ndindex(*(len(parameter.values) for parameter in space.parameters)):
        values = [parameter.values[level] for parameter, level in zip(space.parameters, index, strict=True)]
        configuration = dict(zip(names, values, strict=True))
        real = truth(configuration)
        fits = real.kind is None and real.memory_gib <= CAPACITY_GIB * (1 - headroom)
        if fits and not space.violations(configuration):
            found.append((configuration, real.log_speedup))
    return found


def observe(candidate: Candidate, trial_id: str, kind: TrialKind, rng: np.random.Generator) -> Observation:
    """Run a candidate: its number is noisy, a failure is cheap and tells only what a log would."""
    real = truth(candidate.configuration)
    common = {"candidate": candidate, "trial_id": trial_id, "trial_kind": kind}
    if real.kind is FailureKind.OOM_GPU:
        # The failing allocation shows only a part of what was needed.
        bound = CAPACITY_GIB + 0.3 * (real.memory_gib - CAPACITY_GIB)
        return Observation(
            **common,
            kind=OutcomeKind.FAILED,
            failure=real.kind,
            memory_bound_gib=bound,
            gpu_hours=GPUS * 2 / 60,
        )
    if real.kind is not None:
        signature = "conflict:" + ",".join(real.implicated)
        return Observation(
            **common,
            kind=OutcomeKind.FAILED,
            failure=real.kind,
            signature=signature,
            implicated=real.implicated,
            gpu_hours=GPUS * 1.5 / 60,
        )
    if kind is TrialKind.RETEST:
        return Observation(
            **common, kind=OutcomeKind.COMPLETED, memory_gib=real.memory_gib, gpu_hours=GPUS * 2 / 60
        )
    minutes = 4.0 + 4.0 * math.exp(-real.log_speedup)
    return Observation(
        **common,
        kind=OutcomeKind.COMPLETED,
        log_speedup=real.log_speedup + NOISE_SD * float(rng.standard_normal()),
        memory_gib=real.memory_gib,
        gpu_hours=GPUS * minutes / 60,
    )


def first_input(
    space: ParameterSpace,
    seed: int,
    trials: int = 30,
    effects: tuple[Effect, ...] = (),
    suggestions: tuple[Suggestion, ...] = (),
) -> SearchInput:
    """What a search starts from: the baseline was measured."""
    baseline = Candidate(configuration=space.baseline())
    measured = Observation(
        candidate=baseline,
        trial_id="baseline",
        trial_kind=TrialKind.BASELINE,
        kind=OutcomeKind.COMPLETED,
        log_speedup=0.0,
        relative_variance=0.5,
        memory_gib=_memory(baseline.configuration),
    )
    return SearchInput(
        space=space,
        observations=(measured,),
        noise_sd=NOISE_SD,
        budget=Budget(trials=trials, trials_left=trials),
        seed=seed,
        effects=effects,
        suggestions=suggestions,
        baseline_memory_gib=_memory(baseline.configuration),
        memory_limit_gib=CAPACITY_GIB,
        full_trial_gpu_hours=1.0,
    )


def after(search: SearchInput, observation: Observation) -> SearchInput:
    """The input once one more trial has ended."""
    spent = 1 if observation.trial_kind is TrialKind.SEARCH else 0
    left = (search.budget.trials_left or 0) - spent
    return dataclasses.replace(
        search,
        observations=(*search.observations, observation),
        budget=search.budget.model_copy(update={"trials_left": left}),
    )


def run_proposal(search: SearchInput, proposal: Proposal, rng: np.random.Generator) -> SearchInput:
    """Run a proposal and take its result in."""
    name = f"t{len(search.observations):04d}"
    return after(search, observe(proposal.candidate, name, proposal.kind, rng))
