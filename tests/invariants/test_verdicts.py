from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.invariants.check import MANDATORY, check_invariants, self_consistency, verifiable
from engine.invariants.context import InvariantContext
from engine.invariants.findings import INVARIANTS
from engine.schema.evidence import ExceptionRecord, RunEvidence, WindowReading
from engine.schema.trial import InvariantResult, InvariantStatus
from tests.invariants import builders as b

CONTEXT = InvariantContext(scope_findings=())
BASELINE = b.healthy_run()
WINDOW = range(b.TOTAL - b.MEASURED, b.TOTAL)

Change = Callable[[RunEvidence], RunEvidence]


def verdict(
    name: str,
    candidate: RunEvidence,
    *,
    baseline: RunEvidence = BASELINE,
    context: InvariantContext = CONTEXT,
) -> InvariantResult:
    results = {result.name: result for result in check_invariants(baseline, candidate, context)}
    return results[name]


def uncaught() -> ExceptionRecord:
    return ExceptionRecord(
        phase="uncaught",
        type="ValueError",
        bases=("ValueError",),
        message="boom",
        frames=(),
        update=3,
        memory=None,
        cuda_memory=None,
    )


def fields(**values: object) -> Change:
    return lambda run: run.model_copy(update=values)


def updates(only: range | None = None, **values: object) -> Change:
    return lambda run: b.with_update_fields(run, only=only, **values)


def one_rank(number: int, **values: object) -> Change:
    return lambda run: b.with_ranks(
        run, lambda rank: rank.model_copy(update=values) if rank.rank == number else rank
    )


def cut(run: RunEvidence) -> RunEvidence:
    return b.with_ranks(run, lambda rank: rank.model_copy(update={"updates": rank.updates[:4]}))


def halve(name: str) -> Change:
    return lambda run: b.with_updates(
        run, lambda record: record.model_copy(update={name: getattr(record, name) // 2})
    )


def scale_losses(factor: float, only: range | None = None) -> Change:
    def change(run: RunEvidence) -> RunEvidence:
        return b.with_updates(
            run,
            lambda record: record.model_copy(
                update={"loss": tuple(loss * factor for loss in record.loss or ())}
            ),
            only=only,
        )

    return change


def parameters(when: str = "start", **values: object) -> Change:
    def change(run: RunEvidence) -> RunEvidence:
        return b.with_parameters(
            run,
            lambda record: (
                record.model_copy(update=values) if record.name == "layers.1.attn.weight" else record
            ),
            when=when,
        )

    return change


def without_layer(run: RunEvidence) -> RunEvidence:
    return b.with_parameters(run, lambda record: None if record.name == "layers.1.attn.weight" else record)


def untrained_layer(run: RunEvidence) -> RunEvidence:
    start = b.content_hash("layers.1.attn.weight", "start")
    return parameters("end", content_hash=start)(run)


def diverged_replicas(run: RunEvidence) -> RunEvidence:
    changed = parameters("end", content_hash=99)(run)
    return run.model_copy(update={"ranks": (run.ranks[0], changed.ranks[1])})


def drifting(run: RunEvidence) -> RunEvidence:
    return b.with_updates(
        run, lambda record: record.model_copy(update={"wall_ns": b.WALL_NS + record.index * b.WALL_NS // 8})
    )


def compiling_in_window(run: RunEvidence) -> RunEvidence:
    return b.with_updates(run, lambda record: record.model_copy(update={"compiles": record.index}))


FAILING: list[tuple[str, str, Change]] = [
    ("clean_exit", "exited with code 1", fields(exit_code=1)),
    ("clean_exit", "update timeout", fields(ended="update_timeout")),
    ("clean_exit", "signal 9", fields(signal=9, exit_code=None)),
    ("clean_exit", "boom", one_rank(1, exception=uncaught())),
    ("steps_completed", "4 updates of 7", cut),
    ("steps_completed", "no end record", one_rank(1, end=None)),
    ("steps_completed", "left no trace", lambda run: run.model_copy(update={"ranks": run.ranks[:1]})),
    ("steps_completed", "seq 7", one_rank(0, protocol_errors=("update: seq 7 where 6 was due",))),
    ("steps_completed", "agent counted", lambda run: b.with_agent(run, updates=6)),
    ("allocation_identity", "nodes", fields(nodes=2, ranks_per_node=1)),
    ("allocation_identity", "4 cores", fields(cpus_per_rank=2)),
    ("allocation_identity", "lifted", lambda run: b.with_agent(run, limit_lifted=True)),
    (
        "allocation_identity",
        "world of 3",
        lambda run: b.with_ranks(
            run,
            lambda rank: rank.model_copy(
                update={"hello": rank.hello.model_copy(update={"world": 3})} if rank.hello else {}
            ),
        ),
    ),
    ("model_identity", "1 missing", without_layer),
    ("model_identity", "another shape", parameters(shape=(32, 2))),
    ("model_identity", "frozen", parameters(trainable=False)),
    ("model_identity", "other values", parameters(content_hash=5)),
    (
        "model_identity",
        "share",
        lambda run: b.with_parameters(run, lambda record: None if record.tied_to else record),
    ),
    ("data_identity", "other samples", updates(range(2, 3), data_hash=7)),
    ("data_identity", "other labels", updates(range(2, 3), label_hash=7)),
    (
        "tokens_per_update",
        "256 tokens instead of 512",
        lambda run: halve("label_tokens")(halve("tokens")(run)),
    ),
    ("tokens_per_update", "label tokens", halve("label_tokens")),
    ("work_performed", "no backward", lambda run: b.with_counts(run, backward=1)),
    ("work_performed", "0 forward", lambda run: b.with_counts(run, forward=0, backward=0)),
    ("work_performed", "not trained", untrained_layer),
    ("work_performed", "fewer weights", updates(steps=(b.StepSample(optimizer=0, changed=0, sampled=128),))),
    ("optimizer_identity", "sgd instead of adamw", lambda run: b.with_optimizer(run, class_name="SGD")),
    ("optimizer_identity", "weight_decay", lambda run: b.with_optimizer(run, hyper={"weight_decay": 0.0})),
    (
        "learning_rate_trace",
        "lr of group 0 in update 3",
        updates(range(3, 4), hyper=(({"lr": 0.1, "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},),)),
    ),
    ("update_cadence", "2 samples", updates(samples=1)),
    ("update_cadence", "clips gradients at 2 in update 0 instead of 1", updates(clip_max=(2.0,))),
    ("update_cadence", "skipped", lambda run: b.with_counts(run, skipped=1)),
    ("update_cadence", "norm", parameters("end", sumsq=14.0)),
    ("update_cadence", "different weights", diverged_replicas),
    ("precision_floor", "float16 is below", updates(autocast=("cpu:float16",))),
    ("precision_floor", "without a master copy", updates(param_dtypes=("bfloat16",))),
    ("precision_floor", "float8", updates(grad_dtypes=("float8_e4m3fn",))),
    ("loss_trajectory", "loss", scale_losses(1.01)),
    ("loss_trajectory", "update 4", scale_losses(0.99, range(4, 5))),
    ("loss_trajectory", "not finite", updates(range(5, 6), nonfinite=("loss",), loss=())),
    ("gradient_health", "not finite", updates(range(5, 6), nonfinite=("grad_norm",), grad_norm=None)),
    ("gradient_health", "typically", updates(grad_norm=3.0)),
    ("clock_agreement", "0.500 s for the window", lambda run: halve("wall_ns")(run)),
    ("clock_agreement", "clocks of rank 0 were replaced", updates(range(3, 4), clocks_ok=False)),
    ("clock_agreement", "hooks of rank 0 were replaced", updates(range(3, 4), hooks_ok=False)),
    ("clock_agreement", "CPU time", lambda run: halve("cpu_ns")(run)),
    ("clock_agreement", "in a run of", fields(wall_s=1.0)),
    ("steady_state", "drift", drifting),
    ("steady_state", "compiled 5 graphs", compiling_in_window),
]

LOST: list[tuple[str, Change]] = [
    ("clean_exit", fields(exit_code=None)),
    ("allocation_identity", lambda run: b.with_agent(run, window=None)),
    ("model_identity", lambda run: b.with_rank_fields(run, start_signature=None)),
    ("model_identity", parameters(content_hash=None)),
    ("data_identity", updates(range(3, 4), data_hash=None)),
    ("tokens_per_update", updates(tokens=None)),
    ("tokens_per_update", updates(label_tokens=None, label_hash=None)),
    ("work_performed", lambda run: b.with_counts(run, backward=None)),
    ("work_performed", updates(steps=None)),
    ("work_performed", lambda run: b.with_rank_fields(run, end_signature=None)),
    ("optimizer_identity", lambda run: b.with_rank_fields(run, optimizers=())),
    ("learning_rate_trace", updates(hyper=None)),
    ("update_cadence", updates(samples=None)),
    ("update_cadence", lambda run: b.with_rank_fields(run, end_signature=None)),
    ("precision_floor", updates(autocast=None)),
    ("loss_trajectory", updates(range(6, 7), loss=None)),
    ("gradient_health", updates(grad_norm=None)),
    ("clock_agreement", updates(clocks_ok=None)),
    ("clock_agreement", lambda run: b.with_agent(updates(arrived_ns=None)(run), window=None)),
    ("steady_state", updates(wall_ns=None)),
]

BLIND: list[tuple[str, Change]] = [
    ("clean_exit", fields(exit_code=None)),
    ("model_identity", lambda run: b.with_rank_fields(run, start_signature=None)),
    ("data_identity", updates(data_hash=None, label_hash=None)),
    ("tokens_per_update", updates(tokens=None, label_tokens=None)),
    ("work_performed", lambda run: b.with_counts(run, forward=None)),
    ("optimizer_identity", lambda run: b.with_rank_fields(run, optimizers=())),
    ("learning_rate_trace", updates(hyper=None)),
    ("update_cadence", updates(samples=None)),
    ("precision_floor", updates(autocast=None)),
    ("loss_trajectory", updates(loss=None)),
    ("gradient_health", updates(grad_norm=None)),
    ("clock_agreement", updates(clocks_ok=None)),
    ("steady_state", updates(wall_ns=None)),
]


@pytest.mark.parametrize(
    "candidate",
    [
        b.healthy_run(),
        b.healthy_run(micro_batches=4),
        b.healthy_run(micro_batches=1),
        b.healthy_run(ranks=1, cpus_per_rank=2),
        b.healthy_run(sharded=True),
        updates(autocast=("cpu:bfloat16",))(b.healthy_run()),
        b.with_optimizer(b.healthy_run(), hyper={"fused": True, "foreach": None}),
        b.with_optimizer(b.healthy_run(), wrapper="ZeroRedundancyOptimizer"),
        updates(range(0, 2), compiles=9)(updates(compiles=9)(b.healthy_run())),
        scale_losses(1.0004)(b.healthy_run()),
    ],
    ids=[
        "same",
        "accumulate",
        "one-batch",
        "one-rank",
        "sharded",
        "bf16",
        "fused",
        "zero1",
        "compiled",
        "rounding",
    ],
)
def test_honest_changes_pass_all_sixteen(candidate: RunEvidence) -> None:
    """Another layout, sharding, kernel or permitted precision of the same training fails nothing."""
    results = check_invariants(BASELINE, candidate, CONTEXT)
    assert [result.name for result in results] == list(INVARIANTS)
    assert [
        (result.name, result.reason) for result in results if result.status is not InvariantStatus.PASSED
    ] == []
    assert verifiable(results) == (True, ())


@pytest.mark.parametrize(("name", "words", "change"), FAILING, ids=[f"{n}-{w}" for n, w, _ in FAILING])
def test_each_violation_fails_its_invariant(name: str, words: str, change: Change) -> None:
    """A violation fails the invariant that guards against it, in words that hold the facts."""
    result = verdict(name, change(BASELINE))
    assert result.status is InvariantStatus.FAILED
    assert words in " ".join((result.reason, *result.evidence))
    assert result.expected is not None
    assert result.observed is not None
    assert result.layer == INVARIANTS[name]


@pytest.mark.parametrize(("name", "change"), LOST)
def test_a_value_that_vanishes_is_a_failure(name: str, change: Change) -> None:
    """What the baseline shows and the candidate does not is lost visibility, never a pass or a skip."""
    result = verdict(name, change(BASELINE))
    assert result.status is InvariantStatus.FAILED
    assert "lost visibility" in " ".join((result.reason, *result.evidence))


@pytest.mark.parametrize(("name", "change"), BLIND)
def test_what_neither_run_shows_is_skipped_with_a_reason(name: str, change: Change) -> None:
    """A quantity that neither run shows is no pass."""
    result = verdict(name, change(BASELINE), baseline=change(BASELINE))
    assert result.status is InvariantStatus.SKIPPED
    assert len(result.reason) > 10


def test_scope_findings_decide_scope_respected() -> None:
    """Violations fail, an empty list passes, an unchecked scope is skipped."""
    changed = InvariantContext(scope_findings=("train.py is locked and was changed",))
    assert verdict("scope_respected", BASELINE, context=changed).status is InvariantStatus.FAILED
    assert verdict("scope_respected", BASELINE).status is InvariantStatus.PASSED
    unchecked = verdict("scope_respected", BASELINE, context=InvariantContext())
    assert unchecked.status is InvariantStatus.SKIPPED


def test_data_order_decides_whether_updates_may_swap_samples() -> None:
    """Swapped updates fail under exact order and pass as a multiset."""
    hashes = {3: 4, 4: 3}

    by_rank = {rank.rank: {u.index: u for u in rank.updates} for rank in BASELINE.ranks}
    swapped = b.with_ranks(
        BASELINE,
        lambda rank: rank.model_copy(
            update={
                "updates": tuple(
                    u.model_copy(
                        update={
                            "data_hash": by_rank[rank.rank][hashes.get(u.index, u.index)].data_hash,
                            "label_hash": by_rank[rank.rank][hashes.get(u.index, u.index)].label_hash,
                        }
                    )
                    for u in rank.updates
                )
            }
        ),
    )
    assert verdict("data_identity", swapped).status is InvariantStatus.FAILED
    multiset = CONTEXT.model_copy(update={"data_order": "same_multiset"})
    assert verdict("data_identity", swapped, context=multiset).status is InvariantStatus.PASSED


def test_norms_of_shards_are_put_together_once() -> None:
    """Parts add up in squares, but a norm that clipping returns whole on every rank counts once."""
    parts = b.healthy_run(sharded=True)
    whole = b.with_updates(
        parts, lambda record: record.model_copy(update={"grad_norm": 1.5 + 0.01 * record.index})
    )
    assert verdict("gradient_health", parts).status is InvariantStatus.PASSED
    assert verdict("gradient_health", whole).status is InvariantStatus.PASSED
    equal_parts = updates(grad_norm=1.0, grad_norm_source="foreach_shard", clip_max=())(parts)
    assert verdict("gradient_health", equal_parts).status is InvariantStatus.FAILED


HIDDEN = {"grad_norm_source": "foreach", "clip_max": (), "clip_norms": ()}


@pytest.mark.parametrize("swapped", [False, True])
def test_clipping_in_own_code_is_known_by_its_effect(swapped: bool) -> None:
    """Clipping in a run's own code passes against torch's; a run that stopped clipping fails."""
    own, none = updates(grad_norm=1.0, **HIDDEN)(BASELINE), updates(grad_norm=1.5, **HIDDEN)(BASELINE)
    for other, wanted in ((own, InvariantStatus.PASSED), (none, InvariantStatus.FAILED)):
        baseline, candidate = (other, BASELINE) if swapped else (BASELINE, other)
        for name in ("update_cadence", "gradient_health"):
            assert verdict(name, candidate, baseline=baseline).status is wanted


def test_clipping_without_effect_cannot_vanish() -> None:
    """Where no norm reaches the limit, dropping the call is lost visibility."""
    small = updates(grad_norm=0.5, clip_norms=(0.5,))(BASELINE)
    dropped = updates(grad_norm=0.5, **HIDDEN)(BASELINE)
    result = verdict("update_cadence", dropped, baseline=small)
    assert result.status is InvariantStatus.FAILED
    assert "lost visibility" in result.reason


def test_less_padding_is_no_lost_token() -> None:
    """Fewer positions pass while the masked samples and the label tokens are the same."""
    assert verdict("tokens_per_update", halve("tokens")(BASELINE)).status is InvariantStatus.PASSED
    other_rows = updates(data_hash=1)(halve("tokens")(BASELINE))
    assert verdict("tokens_per_update", other_rows).status is InvariantStatus.FAILED


def test_the_floor_follows_the_ladder() -> None:
    """bfloat16 compute passes a bf16 floor and fails an fp32 floor, unless the baseline uses it."""
    lower = updates(autocast=("cpu:bfloat16",))(BASELINE)
    strict = CONTEXT.model_copy(update={"precision_floor": "fp32"})
    assert verdict("precision_floor", lower).status is InvariantStatus.PASSED
    assert verdict("precision_floor", lower, context=strict).status is InvariantStatus.FAILED
    assert verdict("precision_floor", lower, baseline=lower, context=strict).status is InvariantStatus.PASSED


def test_the_band_of_reruns_widens_the_loss_check() -> None:
    """A loss outside the tolerance passes within the measured spread of the baseline."""
    wide = CONTEXT.model_copy(update={"loss_band": 0.1})
    assert verdict("loss_trajectory", scale_losses(1.01)(BASELINE)).status is InvariantStatus.FAILED
    assert (
        verdict("loss_trajectory", scale_losses(1.01)(BASELINE), context=wide).status
        is InvariantStatus.PASSED
    )


def test_impossible_speed_fails_only_where_the_peak_is_known() -> None:
    """More FLOP/s than the devices have is no result."""
    slow = CONTEXT.model_copy(update={"device_peak_flops": 1e9, "flops_per_update": 1e9})
    fast = CONTEXT.model_copy(update={"device_peak_flops": 1e10, "flops_per_update": 1e9})
    assert verdict("work_performed", BASELINE, context=slow).status is InvariantStatus.FAILED
    assert verdict("work_performed", BASELINE, context=fast).status is InvariantStatus.PASSED


def test_idle_experts_are_no_skipped_layer() -> None:
    """One expert without tokens passes; half of the experts without training does not."""
    experts = tuple(f"layers.{layer}.experts.{expert}.w" for layer in range(2) for expert in range(4))

    def run(idle: int) -> RunEvidence:
        def record(name: str, when: str, moved: bool) -> b.ParameterRecord:
            template = BASELINE.ranks[0].start_signature
            assert template is not None
            return template.parameters[0].model_copy(
                update={"name": name, "content_hash": b.content_hash(name, when if moved else "start")}
            )

        def of_rank(rank: b.RankEvidence) -> b.RankEvidence:
            made = {
                when: tuple(record(n, when, number >= idle) for number, n in enumerate(experts))
                for when in ("start", "end")
            }
            return rank.model_copy(
                update={
                    f"{when}_signature": b.SignatureRecord(
                        when=when, model="M", parameters=made[when], buffers=(), unavailable=None
                    )
                    for when in ("start", "end")
                }
            )

        return b.with_ranks(BASELINE, of_rank)

    assert verdict("work_performed", run(1), baseline=run(0)).status is InvariantStatus.PASSED
    assert verdict("work_performed", run(4), baseline=run(0)).status is InvariantStatus.FAILED


@pytest.mark.parametrize("name", MANDATORY)
def test_a_skipped_mandatory_invariant_forbids_verified(name: str) -> None:
    """None of the mandatory invariants may be skipped, and every reason is said."""
    results = [
        result.model_copy(update={"status": InvariantStatus.SKIPPED}) if result.name == name else result
        for result in check_invariants(BASELINE, BASELINE, CONTEXT)
    ]
    allowed, reasons = verifiable(results)
    assert not allowed
    assert [reason for reason in reasons if name in reason]


def test_optional_skips_and_missing_results_in_verified() -> None:
    """An optional invariant may be skipped with a reason, but none may be absent or failed."""
    results = list(check_invariants(BASELINE, BASELINE, CONTEXT))
    skipped = [
        result.model_copy(update={"status": InvariantStatus.SKIPPED})
        if result.name == "steady_state"
        else result
        for result in results
    ]
    assert verifiable(skipped)[0]
    assert not verifiable(results[:-1])[0]
    assert not verifiable(check_invariants(BASELINE, halve("wall_ns")(BASELINE), CONTEXT))[0]


def test_a_baseline_is_checked_on_its_own() -> None:
    """A healthy baseline passes its self checks, a broken one does not."""
    assert all(result.status is InvariantStatus.PASSED for result in self_consistency(BASELINE))
    broken = {result.name: result.status for result in self_consistency(cut(BASELINE))}
    assert broken["steps_completed"] is InvariantStatus.FAILED


def test_violations_name_rank_and_update() -> None:
    """A fault of one rank in one update is traced to both."""
    odd = one_rank(1, updates=updates(range(3, 4), clocks_ok=False)(BASELINE).ranks[1].updates)(BASELINE)
    result = verdict("clock_agreement", odd)
    assert result.status is InvariantStatus.FAILED
    assert "rank 1" in result.reason
    assert "update 3" in result.reason


def test_a_short_run_has_no_steady_state() -> None:
    """One compilation in the window fails a full run and says nothing about a short one."""
    compiled = updates(range(b.TOTAL - 1, b.TOTAL), compiles=1)(BASELINE)
    short = CONTEXT.model_copy(update={"is_short_run": True})
    assert verdict("steady_state", compiled).status is InvariantStatus.FAILED
    skipped = verdict("steady_state", compiled, context=short)
    assert skipped.status is InvariantStatus.SKIPPED
    assert skipped.reason


def test_a_tick_of_cpu_time_in_a_short_window_is_no_further_core() -> None:
    """A window of 8 ms in which /proc counted one tick of 10 ms proves no second core; 80 ms would."""
    for cpu_s, passes in ((0.01, True), (0.08, False)):
        window = WindowReading(
            first=b.TOTAL - b.MEASURED, last=b.TOTAL - 1, elapsed_ns=8_000_000, cpu_s=cpu_s
        )
        run = b.with_agent(b.healthy_run(), window=window)
        results = {each.name: each for each in check_invariants(b.healthy_run(), run, InvariantContext())}
        assert ("cores busy where" in results["allocation_identity"].reason) is not passes
