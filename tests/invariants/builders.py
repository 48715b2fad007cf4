"""Synthetic evidence of a small healthy run, and ways to bend it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from engine.schema.evidence import (
    AgentReading,
    EndRecord,
    EventCounts,
    HelloRecord,
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

TOTAL, MEASURED = 7, 5
SAMPLES, SEQUENCE = 8, 64
WALL_NS = 200_000_000
MODULUS = 1 << 64
PARAMETERS = ("embed.weight", "layers.0.attn.weight", "layers.1.attn.weight", "head.bias")
LOSSES = (6.0, 5.8, 5.5, 5.3, 5.2, 5.1, 5.05)


def content_hash(name: str, when: str) -> int:
    """A stand-in for the hash of a whole parameter."""
    return sum(ord(letter) * 7919**place for place, letter in enumerate(name + when)) % MODULUS


def signature(when: Any, *, ranks: int, rank: int, sharded: bool) -> SignatureRecord:
    """The model on one rank: whole, or in shards whose hashes and squares add up to the whole."""
    records = []
    for number, name in enumerate(PARAMETERS):
        whole, squares = content_hash(name, when), 10.0 + number + (0.3 if when == "end" else 0.0)
        part = 1000 + rank * 17 if rank < ranks - 1 else 0
        if sharded and rank == ranks - 1:
            part = (whole - sum(1000 + other * 17 for other in range(ranks - 1))) % MODULUS
        records.append(
            ParameterRecord(
                name=name,
                shape=(32, 4),
                dtype="float32",
                trainable=True,
                tied_to=None,
                content_hash=part if sharded else whole,
                sumsq=squares / ranks if sharded else squares,
                group=0,
                sharded=sharded,
                replica=0 if sharded else None,
            )
        )
    tied = ParameterRecord(
        name="head.weight",
        shape=(32, 4),
        dtype="float32",
        trainable=True,
        tied_to="embed.weight",
        content_hash=None,
        sumsq=None,
        group=0,
    )
    return SignatureRecord(
        when=when, model="Model", parameters=(*records, tied), buffers=(), unavailable=None
    )


def update(
    index: int, *, ranks: int, micro_batches: int, rank: int, sharded: bool = False, threads: int = 1
) -> UpdateRecord:
    """One update of one rank; sums and means over ranks do not depend on the layout."""
    samples = SAMPLES // ranks
    loss = LOSSES[index % len(LOSSES)] + (rank - (ranks - 1) / 2) * 0.125
    norm = 1.5 + 0.01 * index
    return UpdateRecord(
        index=index,
        arrived_ns=5_000_000_000 + (index + 1) * WALL_NS,
        wall_ns=WALL_NS if index else 10 * WALL_NS,
        end_ns=9_000_000_000 + index * WALL_NS,
        cpu_ns=(WALL_NS - 5_000_000) * threads,
        probe_ns=100_000,
        phases=PhaseTimes(
            forward=60_000_000,
            backward=110_000_000,
            optimizer=10_000_000,
            data=5_000_000,
            eval=0,
            communication=(20 + rank) * 1_000_000,
        ),
        communication_source="ddp_logger",
        counts=EventCounts(
            forward=micro_batches, backward=micro_batches, eval=0, data=micro_batches, optimizer=1, skipped=0
        ),
        samples=samples,
        tokens=samples * SEQUENCE,
        real_tokens=None,
        label_tokens=samples * SEQUENCE,
        label_source="cross_entropy",
        shapes=(f"{samples // micro_batches}x{SEQUENCE}",),
        data_hash=_part(31337 * (index + 1), ranks, rank),
        label_hash=_part(271828 * (index + 1), ranks, rank),
        label_hash_source="labels",
        loss=tuple(loss / micro_batches for _ in range(micro_batches)),
        grad_norm=norm * (2 * (rank + 1) / (ranks * (ranks + 1))) ** 0.5 if sharded else norm,
        grad_norm_source="clip_shard" if sharded else "clip",
        clip_norms=(norm,),
        clip_max=(1.0,),
        hyper=(({"lr": 1e-3 / (index + 1), "weight_decay": 0.1, "betas": (0.9, 0.95), "eps": 1e-8},),),
        steps=(StepSample(optimizer=0, changed=120, sampled=128),),
        autocast=(),
        grad_dtypes=("float32",),
        param_dtypes=("float32",),
        memory=MemoryReading(
            vm_data_bytes=(400 + rank) << 20,
            vm_hwm_bytes=390 << 20,
            vm_rss_bytes=380 << 20,
            cuda_allocated_peak_bytes=None,
            cuda_reserved_peak_bytes=None,
        ),
        hooks_ok=True,
        clocks_ok=True,
        compiles=0,
    )


def _part(whole: int, ranks: int, rank: int) -> int:
    """Parts that add up to `whole` modulo 2**64."""
    others = [(whole * (other + 3)) % MODULUS for other in range(ranks - 1)]
    return others[rank] if rank < ranks - 1 else (whole - sum(others)) % MODULUS


def rank_evidence(
    rank: int, *, ranks: int = 2, micro_batches: int = 2, sharded: bool = False, threads: int = 1
) -> RankEvidence:
    """All records of one rank."""
    numel = 128 * len(PARAMETERS)
    return RankEvidence(
        rank=rank,
        hello=HelloRecord(
            rank=rank,
            local_rank=rank,
            world=ranks,
            pid=100 + rank,
            argv=("train.py",),
            python="python",
            unix_ns=1_700_000_001_000_000_000,
            arrived_ns=4_000_000_000,
        ),
        torch=TorchRecord(
            version="2.13.0", threads=threads, device_name=None, rlimit_data_bytes=None, hooks=("forward",)
        ),
        unavailable={},
        start_signature=signature("start", ranks=ranks, rank=rank, sharded=sharded),
        end_signature=signature("end", ranks=ranks, rank=rank, sharded=sharded),
        optimizers=(
            OptimizerRecord(
                index=0,
                class_name="AdamW",
                groups=(
                    OptimizerGroup(
                        hyper={"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95), "fused": False},
                        tensors=len(PARAMETERS),
                        numel=numel,
                    ),
                ),
                state_dtypes={"exp_avg:float32": numel, "exp_avg_sq:float32": numel},
            ),
        ),
        updates=tuple(
            update(
                index, ranks=ranks, micro_batches=micro_batches, rank=rank, sharded=sharded, threads=threads
            )
            for index in range(TOTAL)
        ),
        exception=None,
        end=EndRecord(updates=TOTAL, reason="stopped", hooks_ok=True, clocks_ok=True),
        agent=AgentReading(
            pid=100 + rank,
            hello=True,
            updates=TOTAL,
            end=True,
            exit_code=0,
            first_update_ns=5_000_000_000 + WALL_NS,
            last_update_ns=5_000_000_000 + TOTAL * WALL_NS,
            cpu_s=3.0,
            peak_vm_data_bytes=410 << 20,
            peak_vm_hwm_bytes=400 << 20,
            limit_seen_bytes=1000 << 20,
            window=WindowReading(
                first=TOTAL - MEASURED,
                last=TOTAL - 1,
                elapsed_ns=MEASURED * WALL_NS,
                cpu_s=MEASURED * 0.195 * threads,
            ),
        ),
    )


def healthy_run(
    *, ranks: int = 2, micro_batches: int = 2, sharded: bool = False, cpus_per_rank: int = 1
) -> RunEvidence:
    """A run without a fault; equal work whatever the layout."""
    return RunEvidence(
        trial_id="t1",
        ended="exited",
        exit_code=0,
        signal=None,
        wall_s=12.0,
        started_at=1_700_000_000.0,
        host="node1",
        launch_error=None,
        nodes=1,
        ranks_per_node=ranks,
        cpus_per_rank=cpus_per_rank,
        total_updates=TOTAL,
        measured_updates=MEASURED,
        device="cpu",
        memory_limit_bytes=1000 << 20,
        ranks=tuple(
            rank_evidence(
                rank, ranks=ranks, micro_batches=micro_batches, sharded=sharded, threads=cpus_per_rank
            )
            for rank in range(ranks)
        ),
        log_path=None,
        log_tail="",
    )


def with_ranks(run: RunEvidence, change: Callable[[RankEvidence], RankEvidence]) -> RunEvidence:
    """The run with every rank changed."""
    return run.model_copy(update={"ranks": tuple(change(rank) for rank in run.ranks)})


def with_rank_fields(run: RunEvidence, **fields: Any) -> RunEvidence:
    """The run with fields of every rank replaced."""
    return with_ranks(run, lambda rank: rank.model_copy(update=fields))


def with_updates(
    run: RunEvidence, change: Callable[[UpdateRecord], UpdateRecord], *, only: range | None = None
) -> RunEvidence:
    """The run with updates changed, all of them or those in `only`."""

    def of_rank(rank: RankEvidence) -> RankEvidence:
        changed = (
            change(record) if only is None or record.index in only else record for record in rank.updates
        )
        return rank.model_copy(update={"updates": tuple(changed)})

    return with_ranks(run, of_rank)


def with_update_fields(run: RunEvidence, *, only: range | None = None, **fields: Any) -> RunEvidence:
    """The run with fields of updates replaced."""
    return with_updates(run, lambda record: record.model_copy(update=fields), only=only)


def with_counts(run: RunEvidence, **fields: Any) -> RunEvidence:
    """The run with event counts of every update replaced."""
    return with_updates(
        run, lambda record: record.model_copy(update={"counts": record.counts.model_copy(update=fields)})
    )


def with_agent(run: RunEvidence, **fields: Any) -> RunEvidence:
    """The run with the agent's readings replaced."""

    def of_rank(rank: RankEvidence) -> RankEvidence:
        assert rank.agent is not None
        return rank.model_copy(update={"agent": rank.agent.model_copy(update=fields)})

    return with_ranks(run, of_rank)


def with_parameters(
    run: RunEvidence, change: Callable[[ParameterRecord], ParameterRecord | None], *, when: str = "start"
) -> RunEvidence:
    """The run with the parameters of a signature changed or left out."""

    def of_rank(rank: RankEvidence) -> RankEvidence:
        record = rank.start_signature if when == "start" else rank.end_signature
        assert record is not None
        changed = tuple(new for new in map(change, record.parameters) if new is not None)
        return rank.model_copy(
            update={f"{when}_signature": record.model_copy(update={"parameters": changed})}
        )

    return with_ranks(run, of_rank)


def with_optimizer(run: RunEvidence, *, hyper: dict[str, Any] | None = None, **fields: Any) -> RunEvidence:
    """The run with its optimizer record changed; `hyper` is merged into the group's."""

    def of_rank(rank: RankEvidence) -> RankEvidence:
        record = rank.optimizers[0]
        group = record.groups[0]
        groups = (group.model_copy(update={"hyper": {**group.hyper, **(hyper or {})}}),)
        return rank.model_copy(
            update={"optimizers": (record.model_copy(update={"groups": groups, **fields}),)}
        )

    return with_ranks(run, of_rank)
