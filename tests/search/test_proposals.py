"""Single decisions: purity, starts, memory, escalation, parallel slots."""

from __future__ import annotations

import dataclasses
import math
import time

import numpy as np
import pytest
from pydantic import ValidationError
from surface import CAPACITY_GIB, KNOBS, first_input, make_space, run_proposal, truth

from engine.schema.advice import Idea
from engine.schema.trial import Candidate, FailureKind, OutcomeKind, PatchRef, TrialKind
from engine.search.effects import effect_table
from engine.search.escalation import escalation
from engine.search.ideas import effects_of, suggestions_of
from engine.search.incumbents import finalists
from engine.search.models import fit_models
from engine.search.propose import propose
from engine.search.view import Budget, Effect, Exhausted, Observation, Proposal, SearchInput, Suggestion

SPACE = make_space()


def proposed(search: SearchInput) -> Proposal:
    """The proposal; the search must not be exhausted."""
    answer = propose(search)
    assert not isinstance(answer, Exhausted), answer.reason
    return answer


def partly_searched(trials: int, seed: int = 0) -> SearchInput:
    """A search after some trials."""
    search, rng = first_input(SPACE, seed), np.random.default_rng(seed)
    for _ in range(trials):
        search = run_proposal(search, proposed(search), rng)
    return search


def candidate(**changes: object) -> Candidate:
    """The baseline with changes."""
    return Candidate(configuration={**SPACE.baseline(), **changes})


def with_observation(search: SearchInput, **fields: object) -> SearchInput:
    """The input with one more observation."""
    seen = Observation.model_validate({"trial_id": f"x{len(search.observations)}", **fields})
    return dataclasses.replace(search, observations=(*search.observations, seen))


def test_equal_inputs_give_equal_proposals() -> None:
    """A proposal is a pure function of the input: a replay after a crash repeats it."""
    search = partly_searched(8)
    again = dataclasses.replace(
        search,
        observations=tuple(
            Observation.model_validate_json(seen.model_dump_json()) for seen in search.observations
        ),
    )
    assert proposed(search) == proposed(again)


def test_the_order_of_observations_does_not_change_the_models() -> None:
    """Independent trials may end in any order: posteriors are identical to the last bit."""
    search = partly_searched(10)
    backwards = dataclasses.replace(search, observations=search.observations[::-1])
    first, second = fit_models(search), fit_models(backwards)
    assert np.array_equal(first.speed.mean, second.speed.mean)
    assert np.array_equal(first.speed.factor, second.speed.factor)
    assert first.memory is not None
    assert second.memory is not None
    assert np.array_equal(first.memory.posterior.coefficients, second.memory.posterior.coefficients)
    assert effect_table(first) == effect_table(second)


def test_infrastructure_is_invisible() -> None:
    """A void, a cancelled and a pre-empted trial change no model and leave their candidate free."""
    search = partly_searched(6)
    wanted = candidate(compile_scope="model")
    hidden = search
    for kind, failure in (
        (OutcomeKind.VOID, FailureKind.INFRA),
        (OutcomeKind.CANCELLED, None),
        (OutcomeKind.FAILED, FailureKind.PREEMPTED),
    ):
        hidden = with_observation(hidden, candidate=wanted, kind=kind, failure=failure, log_speedup=-3.0)
    assert effect_table(fit_models(search)) == effect_table(fit_models(hidden))
    assert finalists(search) == finalists(hidden)


def test_starts_come_in_order() -> None:
    """History first, then the advisor, then three random candidates, then the model decides."""
    history = candidate(activation_recompute="selective", micro_batch_size=2)
    advised = Effect(mechanism="compile_scope", value="model", log_speedup=0.1, sd=0.05, source="advisor")
    search = first_input(
        SPACE,
        3,
        effects=(advised,),
        suggestions=(Suggestion(candidate=history, source="history", reason="It won on a similar job."),),
    )
    rng, origins = np.random.default_rng(3), []
    for _ in range(6):
        proposal = proposed(search)
        origins.append(proposal.origin)
        if proposal.origin == "start:history":
            assert proposal.candidate.key() == history.key()
        search = run_proposal(search, proposal, rng)
    assert origins[:5] == ["start:history", "start:advisor", *["start:random"] * 3]
    assert not origins[5].startswith("start")


def test_an_out_of_memory_changes_the_next_proposal() -> None:
    """A candidate that ran and one that did not fit lead to different proposals and beliefs."""
    search = partly_searched(5, seed=2)
    big = candidate(activation_recompute="none", micro_batch_size=4, tensor_parallel_size=2)
    ran = with_observation(
        search, candidate=big, kind=OutcomeKind.COMPLETED, log_speedup=0.4, memory_gib=60.0
    )
    full = with_observation(
        search,
        candidate=big,
        kind=OutcomeKind.FAILED,
        failure=FailureKind.OOM_GPU,
        memory_bound_gib=CAPACITY_GIB + 20,
    )
    assert proposed(ran).candidate.key() != proposed(full).candidate.key()
    larger = candidate(activation_recompute="none", micro_batch_size=8, tensor_parallel_size=2)
    chances = []
    for each in (ran, full):
        models = fit_models(each)
        rows = models.lattice.rows([big, larger])
        chances.append(models.p_fits(models.encoder.encode(rows)))
    assert np.all(chances[1] < 0.5)
    assert np.all(chances[1] < chances[0])


def test_proposals_after_an_out_of_memory_are_predicted_to_fit() -> None:
    """With room to choose, every search proposal has at least an even chance to fit; late ones 80 %."""
    search, rng = first_input(SPACE, 4), np.random.default_rng(4)
    while search.budget.trials_left:
        proposal = proposed(search)
        late = search.budget.progress >= 2 / 3
        if proposal.kind is TrialKind.SEARCH:
            assert proposal.predicted.p_fits >= (0.8 if late else 0.5)
        search = run_proposal(search, proposal, rng)


def test_a_baseline_over_the_headroom_does_not_end_the_search() -> None:
    """Where nothing is likely to fit, the likeliest candidates are tried instead of giving up."""
    search = first_input(SPACE, 0)
    assert search.baseline_memory_gib is not None
    tight = dataclasses.replace(search, memory_limit_gib=search.baseline_memory_gib * 0.95)
    assert proposed(tight).predicted.p_fits > 0.1


def test_a_job_without_memory_numbers_is_searched() -> None:
    """Unknown memory is no reason to stop, and a failure that no bound explains is not proposed again."""
    search = first_input(SPACE, 0)
    bare = dataclasses.replace(
        search,
        baseline_memory_gib=None,
        memory_limit_gib=None,
        observations=tuple(seen.model_copy(update={"memory_gib": None}) for seen in search.observations),
    )
    first = proposed(bare)
    assert first.predicted.memory_gib is None
    failed = with_observation(
        bare, candidate=first.candidate, kind=OutcomeKind.FAILED, failure=FailureKind.OOM_GPU
    )
    assert proposed(failed).candidate.key() != first.candidate.key()


def test_numbers_that_are_not_finite_never_arrive() -> None:
    """NaN and infinity are refused where an observation is made."""
    for field in ("log_speedup", "memory_gib", "memory_bound_gib", "gpu_hours"):
        for value in (math.nan, math.inf):
            with pytest.raises(ValidationError):
                Observation.model_validate(
                    {
                        "candidate": candidate(),
                        "trial_id": "t",
                        "kind": OutcomeKind.COMPLETED,
                        field: value,
                    }
                )


def test_two_fruitless_trials_widen_the_range_and_change_several_parameters() -> None:
    """Values outside the initial ones appear only after two full valid trials in a row brought nothing."""
    first = {"micro_batch_size": (1, 2), "activation_recompute": ("full", "selective")}
    space = make_space(initial=first)
    search = dataclasses.replace(first_input(space, 0), budget=Budget(trials=60, trials_left=60))
    for number in range(3):
        start = proposed(search)
        search = with_observation(
            search, candidate=start.candidate, trial_id=f"s{number}", **_plain(log_speedup=0.2)
        )
        assert _inside(start.candidate, first)
    assert escalation(search, 3).steps == 0
    incumbent = search.observations[1].candidate
    for number in range(2):
        proposal = proposed(search)
        assert _inside(proposal.candidate, first)
        search = with_observation(
            search, candidate=proposal.candidate, trial_id=f"e{number}", **_plain(log_speedup=0.05)
        )
    assert escalation(search, 3).steps == 1
    bold = proposed(search)
    assert bold.origin == "escalation"
    ranked = fit_models(search)
    assert ranked.lattice.axes[2].initial < ranked.lattice.axes[2].allowed
    differing = [
        name for name, value in bold.candidate.configuration.items() if value != incumbent.configuration[name]
    ]
    assert len(differing) >= 2


def test_improvements_and_failures_do_not_escalate() -> None:
    """A failure neither counts as fruitless nor resets the count; an improvement resets it."""
    search = first_input(SPACE, 0)
    for number, gain in enumerate((0.10, 0.11, 0.30, 0.31)):
        search = with_observation(
            search, candidate=candidate(), trial_id=f"t{number}", **_plain(log_speedup=gain)
        )
    assert escalation(search, 0).steps == 0
    failed = with_observation(
        search, candidate=candidate(), kind=OutcomeKind.FAILED, failure=FailureKind.OOM_GPU
    )
    assert escalation(failed, 0).steps == 0
    fruitless = with_observation(failed, candidate=candidate(), **_plain(log_speedup=0.0))
    assert escalation(fruitless, 0) == escalation(
        with_observation(search, candidate=candidate(), **_plain(log_speedup=0.0)), 0
    )
    assert escalation(fruitless, 0).steps == 1


def test_parallel_slots_get_different_candidates() -> None:
    """Four proposals while three run are four distinct candidates, none of them tried before."""
    search = partly_searched(6)
    for _ in range(4):
        proposal = proposed(search)
        search = dataclasses.replace(search, pending=(*search.pending, proposal.candidate))
    keys = {each.key() for each in search.pending}
    assert len(keys) == 4
    assert not keys & {seen.candidate.key() for seen in search.observations}


def test_a_parameter_without_effect_is_not_varied() -> None:
    """Where a parameter's condition does not hold, candidates that differ only in it are one candidate."""
    knobs = {"compile_scope": ("off", "model"), "compile_mode": ("default", "max-autotune")}
    space = make_space(knobs, conditions={"compile_mode": "compile_scope != 'off'"})
    search = first_input(SPACE, 0)
    baseline = Observation(
        candidate=Candidate(configuration=space.baseline()), trial_id="b", **_plain(log_speedup=0.0)
    )
    search = dataclasses.replace(search, space=space, observations=(baseline,))
    found = []
    while isinstance(answer := propose(search), Proposal):
        found.append(answer.candidate.configuration)
        search = with_observation(search, candidate=answer.candidate, **_plain(log_speedup=0.0))
    assert sorted(each["compile_mode"] for each in found) == ["default", "max-autotune"]
    assert all(each["compile_scope"] == "model" for each in found)


def test_patches_are_searched_like_parameters() -> None:
    """An offered patch that helps is switched on and its effect estimated; a withdrawn one is not."""
    patch = PatchRef(name="fused_loss", sha256="ab" * 32)
    search = dataclasses.replace(partly_searched(4), patches=(patch,))
    with_patch = candidate().model_copy(update={"patches": (patch,)})
    search = with_observation(search, candidate=with_patch, **_plain(log_speedup=0.3))
    assert proposed(search).candidate.patches == (patch,)
    row = next(each for each in effect_table(fit_models(search)) if each.label == "patch fused_loss")
    assert row.log_speedup > 0.05
    assert row.trials == 1
    assert proposed(dataclasses.replace(search, patches=())).candidate.patches == ()


def test_only_members_of_a_table_are_proposed() -> None:
    """With a list of existing configurations, all of them are proposed once and nothing else."""
    members = tuple(
        candidate(micro_batch_size=size, compile_scope=scope).configuration
        for size in (1, 2, 4)
        for scope in ("off", "model")
    )
    search = dataclasses.replace(first_input(SPACE, 0), members=members)
    found = []
    while isinstance(answer := propose(search), Proposal):
        found.append(answer.candidate.configuration)
        search = with_observation(search, candidate=answer.candidate, **_plain(log_speedup=0.1))
    assert len(found) == 5
    assert all(each in members for each in found)


def test_ideas_become_beliefs_and_starts() -> None:
    """Single changes are beliefs, joint ones are candidates on top of the baseline."""

    def idea(gain: float, **changes: object) -> Idea:
        return Idea.model_validate(
            {
                "changes": changes,
                "log_speedup_mean": gain,
                "log_speedup_sd": 0.0,
                "log_memory_mean": 0.2,
                "log_memory_sd": 0.1,
                "reason": "It should help.",
            }
        )

    ideas = [
        idea(0.1, compile_scope="model"),
        idea(0.2, micro_batch_size=2, kernel_suite="liger"),
        idea(0.3, micro_batch_size=4, kernel_suite="liger"),
    ]
    (belief,) = effects_of(ideas)
    assert (belief.mechanism, belief.value, belief.log_speedup) == ("compile_scope", "model", 0.1)
    assert belief.sd > 0
    best, _ = suggestions_of(ideas, SPACE)
    assert best.candidate.configuration == {
        **SPACE.baseline(),
        "micro_batch_size": 4,
        "kernel_suite": "liger",
    }


def test_finalists_are_measured_valid_and_keep_the_headroom() -> None:
    """The fastest number is no finalist when its memory or an invariant speaks against it."""
    search = first_input(SPACE, 0)
    good, tight, cheat = (
        candidate(compile_scope="model"),
        candidate(micro_batch_size=8),
        candidate(kernel_suite="liger"),
    )
    search = with_observation(search, candidate=good, **_plain(log_speedup=0.2))
    search = with_observation(
        search,
        candidate=tight,
        kind=OutcomeKind.COMPLETED,
        log_speedup=0.6,
        memory_gib=CAPACITY_GIB * 0.99,
    )
    search = with_observation(search, candidate=cheat, kind=OutcomeKind.REJECTED, log_speedup=0.9)
    assert [each.candidate.key() for each in finalists(search)] == [good.key()]


def test_a_decision_among_a_hundred_thousand_candidates_is_quick() -> None:
    """Ranking about 83,000 candidates takes less than half a second of processor time."""
    knobs = {
        **KNOBS,
        "tensor_parallel_size": (4, 1, 2, 8),
        "param_offload": ("none", "cpu"),
        "comm_bucket_size": (25, 100, 400),
    }
    search, rng, spent = first_input(make_space(knobs), 0), np.random.default_rng(0), []
    for _ in range(5):
        begin = time.process_time()
        proposal = proposed(search)
        spent.append(time.process_time() - begin)
        search = run_proposal(search, proposal, rng)
    assert min(spent) < 0.5


def test_a_space_too_large_to_enumerate_is_searched_near_the_best() -> None:
    """Four million combinations: proposals are valid, new, and better than the random starts."""
    extra = {f"knob{number}": ("a", "b", "c") for number in range(6)}
    space = make_space({**KNOBS, **extra})
    search, rng = first_input(space, 1), np.random.default_rng(1)
    keys = set()
    for _ in range(15):
        proposal = proposed(search)
        assert not space.violations(proposal.candidate.configuration)
        keys.add(proposal.candidate.key())
        search = run_proposal(search, proposal, rng)
    assert len(keys) == 15
    best = truth(finalists(search)[0].candidate.configuration).log_speedup
    starts = [truth(seen.candidate.configuration) for seen in search.searched[:3]]
    assert best > max(each.log_speedup for each in starts if each.kind is None)


def _plain(log_speedup: float) -> dict[str, object]:
    return {
        "kind": OutcomeKind.COMPLETED,
        "log_speedup": log_speedup,
        "memory_gib": 30.0,
        "gpu_hours": 1.0,
    }


def _inside(tried: Candidate, allowed: dict[str, tuple[object, ...]]) -> bool:
    return all(tried.configuration[name] in values for name, values in allowed.items())


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
def test_memory_that_admits_no_fit_ends_no_search() -> None:
    """An absurd belief about memory costs the memory model, not the study."""
    absurd = Effect(
        mechanism="compile_scope",
        value="model",
        log_speedup=0.1,
        sd=0.05,
        log_memory=1e160,
        memory_sd=0.1,
        source="advisor",
    )
    search = first_input(SPACE, 0, effects=(absurd,))
    search = with_observation(
        search,
        candidate=candidate(compile_scope="model"),
        kind=OutcomeKind.COMPLETED,
        log_speedup=0.1,
        memory_gib=1.0,
    )
    assert fit_models(search).memory is None
    assert proposed(search).predicted.memory_gib is None
