from __future__ import annotations

import random
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.invariants.check import check_invariants
from engine.invariants.context import InvariantContext
from engine.invariants.findings import INVARIANTS
from engine.schema.evidence import (
    AgentReading,
    Ended,
    EndRecord,
    EventCounts,
    ExceptionRecord,
    HelloRecord,
    HyperValue,
    MemoryReading,
    OptimizerGroup,
    OptimizerRecord,
    ParameterRecord,
    PhaseTimes,
    RankEvidence,
    RunEvidence,
    SignatureRecord,
    StepSample,
    TorchRecord,
    UpdateRecord,
    WindowReading,
)
from engine.schema.trial import InvariantStatus
from engine.trial.measure import Unmeasured, measure
from tests.invariants import builders as b

CONTEXT = InvariantContext(scope_findings=())
COUNTS = st.one_of(st.integers(-3, 5), st.integers(-(1 << 63), (1 << 64) - 1))
NUMBERS = st.floats(-1e150, 1e150, allow_nan=False)
TEXTS = st.sampled_from(
    ["", "a", "layers.0.w", "lr", "betas", "bfloat16", "cpu:float16", "exp_avg:float32", "end"]
)
HYPER: st.SearchStrategy[HyperValue] = st.one_of(
    st.none(), st.booleans(), COUNTS, NUMBERS, TEXTS, st.lists(NUMBERS, max_size=3).map(tuple)
)


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), strategy)


def tuples(strategy: st.SearchStrategy[Any], size: int = 3) -> st.SearchStrategy[Any]:
    return st.lists(strategy, max_size=size).map(tuple)


def records(kind: type[Any], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Arbitrary records of a kind, field by field from its annotations."""
    return st.builds(
        kind, **{name: known[name] if name in known else maybe(COUNTS) for name in kind.model_fields}
    )


HYPER_GROUPS = tuples(tuples(st.dictionaries(TEXTS, HYPER, max_size=3), 2), 2)
MEMORY = records(MemoryReading)
PARAMETER = records(
    ParameterRecord,
    name=TEXTS,
    shape=tuples(COUNTS),
    dtype=maybe(TEXTS),
    trainable=maybe(st.booleans()),
    tied_to=maybe(TEXTS),
    sumsq=maybe(NUMBERS),
    sharded=st.booleans(),
)
SIGNATURE = records(
    SignatureRecord,
    when=st.sampled_from(["start", "end"]),
    model=maybe(TEXTS),
    parameters=tuples(PARAMETER),
    buffers=st.just(()),
    unavailable=maybe(TEXTS),
)
UPDATE = records(
    UpdateRecord,
    index=st.integers(-1, 5),
    phases=records(PhaseTimes),
    communication_source=maybe(TEXTS),
    counts=records(EventCounts),
    label_source=maybe(TEXTS),
    label_hash_source=maybe(TEXTS),
    shapes=tuples(TEXTS),
    loss=maybe(tuples(NUMBERS)),
    grad_norm=maybe(NUMBERS),
    grad_norm_source=maybe(TEXTS),
    clip_norms=maybe(tuples(NUMBERS)),
    clip_max=maybe(tuples(NUMBERS)),
    hyper=maybe(HYPER_GROUPS),
    steps=maybe(tuples(st.builds(StepSample, optimizer=COUNTS, changed=COUNTS, sampled=COUNTS))),
    autocast=maybe(tuples(TEXTS)),
    grad_dtypes=maybe(tuples(TEXTS)),
    param_dtypes=maybe(tuples(TEXTS)),
    memory=MEMORY,
    hooks_ok=maybe(st.booleans()),
    clocks_ok=maybe(st.booleans()),
    nonfinite=tuples(st.sampled_from(["loss", "grad_norm", "clip", "hyper"])),
)
OPTIMIZER = st.builds(
    OptimizerRecord,
    index=COUNTS,
    class_name=TEXTS,
    groups=tuples(
        st.builds(
            OptimizerGroup,
            hyper=st.dictionaries(TEXTS, HYPER, max_size=3),
            tensors=maybe(COUNTS),
            numel=maybe(COUNTS),
        )
    ),
    state_dtypes=st.dictionaries(TEXTS, COUNTS, max_size=2),
    wrapper=maybe(TEXTS),
)
RANK = st.builds(
    RankEvidence,
    rank=st.integers(-1, 3),
    hello=maybe(records(HelloRecord, rank=COUNTS, argv=st.just(()), python=st.none())),
    torch=maybe(records(TorchRecord, version=maybe(TEXTS), device_name=maybe(TEXTS), hooks=st.just(()))),
    unavailable=st.dictionaries(TEXTS, TEXTS, max_size=2),
    start_signature=maybe(SIGNATURE),
    end_signature=maybe(SIGNATURE),
    optimizers=tuples(OPTIMIZER, 2),
    updates=tuples(UPDATE, 6),
    exception=maybe(
        records(
            ExceptionRecord,
            phase=TEXTS,
            type=TEXTS,
            bases=st.just(()),
            message=TEXTS,
            frames=st.just(()),
            memory=maybe(MEMORY),
            cuda_memory=st.none(),
        )
    ),
    end=maybe(
        records(EndRecord, reason=maybe(TEXTS), hooks_ok=maybe(st.booleans()), clocks_ok=maybe(st.booleans()))
    ),
    agent=maybe(
        records(
            AgentReading,
            hello=maybe(st.booleans()),
            end=maybe(st.booleans()),
            cpu_s=maybe(NUMBERS),
            limit_lifted=maybe(st.booleans()),
            window=maybe(records(WindowReading, first=COUNTS, last=COUNTS, cpu_s=maybe(NUMBERS))),
        )
    ),
)
RUN = st.builds(
    RunEvidence,
    trial_id=TEXTS,
    ended=st.sampled_from(get_args(Ended)),
    exit_code=maybe(COUNTS),
    signal=maybe(COUNTS),
    wall_s=maybe(NUMBERS),
    started_at=maybe(NUMBERS),
    host=st.none(),
    launch_error=maybe(TEXTS),
    nodes=st.integers(-1, 3),
    ranks_per_node=st.integers(-1, 3),
    cpus_per_rank=COUNTS,
    total_updates=st.integers(-1, 7),
    measured_updates=st.integers(-1, 7),
    device=st.sampled_from(["cpu", "cuda"]),
    memory_limit_bytes=maybe(COUNTS),
    ranks=tuples(RANK),
    log_path=st.none(),
    log_tail=TEXTS,
)


@st.composite
def complete_runs(draw: st.DrawFn) -> RunEvidence:
    """Every rank and update present, their contents arbitrary: reaches the depth of every check."""
    ranks = []
    for number in range(draw(st.integers(1, 2))):
        rows = [draw(UPDATE).model_copy(update={"index": index}) for index in range(b.TOTAL)]
        rank = draw(RANK)
        signatures = {
            f"{when}_signature": draw(SIGNATURE).model_copy(update={"when": when})
            for when in ("start", "end")
        }
        ranks.append(rank.model_copy(update={"rank": number, "updates": tuple(rows), **signatures}))
    template = b.healthy_run(ranks=len(ranks))
    device = draw(st.sampled_from(["cpu", "cuda"]))
    return template.model_copy(update={"ranks": tuple(ranks), "device": device})


SLOW = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@SLOW
@given(st.one_of(RUN, complete_runs()))
def test_no_evidence_makes_a_check_raise(run: RunEvidence) -> None:
    """Against a healthy baseline, as the baseline and against itself, any evidence gives sixteen verdicts."""
    healthy = b.healthy_run()
    for baseline, candidate in ((healthy, run), (run, healthy), (run, run)):
        results = check_invariants(baseline, candidate, CONTEXT)
        assert [result.name for result in results] == list(INVARIANTS)
        assert all(result.reason for result in results)
    assert isinstance(measure(run), Unmeasured) or measure(run).step_time_s > 0  # type: ignore[union-attr]


FAULTS = {
    "none": lambda run: run,
    "clock": lambda run: b.with_update_fields(run, only=range(3, 5), wall_ns=b.WALL_NS // 3),
    "loss": lambda run: b.with_update_fields(run, only=range(2, 3), loss=(9.0,)),
    "data": lambda run: b.with_update_fields(run, only=range(2, 3), data_hash=3),
    "backward": lambda run: b.with_counts(run, backward=1),
    "model": lambda run: b.with_rank_fields(run, start_signature=None),
}


@pytest.mark.parametrize("fault", sorted(FAULTS))
@pytest.mark.parametrize("sharded", [False, True])
@given(seed=st.integers(0, 1000))
@settings(max_examples=15, deadline=None)
def test_order_of_ranks_and_micro_batches_is_free(fault: str, sharded: bool, seed: int) -> None:
    """Swapping which rank held which part, and the order of micro-batches, changes no verdict."""
    run = FAULTS[fault](b.healthy_run(ranks=4, micro_batches=2, sharded=sharded))
    rng = random.Random(seed)
    order = rng.sample(range(4), 4)

    def shuffled(record: UpdateRecord) -> UpdateRecord:
        loss = list(record.loss or ())
        rng.shuffle(loss)
        return record.model_copy(update={"loss": tuple(loss)})

    ranks = tuple(run.ranks[source].model_copy(update={"rank": place}) for place, source in enumerate(order))
    other = b.with_updates(run.model_copy(update={"ranks": ranks}), shuffled)
    baseline = b.healthy_run()
    context = CONTEXT
    before = {r.name: r.status for r in check_invariants(baseline, run, context)}
    after = {r.name: r.status for r in check_invariants(baseline, other, context)}
    assert before == after
    assert (fault == "none") == all(
        status is not InvariantStatus.FAILED
        for name, status in after.items()
        if name != "allocation_identity"
    )
