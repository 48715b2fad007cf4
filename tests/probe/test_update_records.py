"""What the probe reports of each optimizer update, for many ways to write a training loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

Watch = Callable[..., Any]
TOKENS = 8 * 16
LABELS = 8 * 13
MODULUS = 1 << 64


def hashes(run: Any, name: str) -> list[int]:
    """Sum over ranks, modulo 2**64, for each update."""
    per_rank = [[int(u[name], 16) for u in run.of_kind("update", rank)] for rank in sorted(run.ranks)]
    return [sum(values) % MODULUS for values in zip(*per_rank, strict=True)]


def losses(run: Any) -> list[float]:
    """The objective of each update: sum of the roots, mean of the ranks."""
    ranks = [[sum(u["loss"]) for u in run.of_kind("update", rank)] for rank in sorted(run.ranks)]
    return [sum(values) / len(ranks) for values in zip(*ranks, strict=True)]


@pytest.mark.parametrize(
    "flags",
    [
        ("--micro", "4"),
        ("--loss", "outside"),
        ("--recompute", "reentrant"),
        ("--recompute", "plain", "--micro", "2"),
        ("--optimizer", "foreach"),
        ("--optimizer", "fused"),
        ("--optimizer", "loop"),
        ("--loader", "0"),
        ("--evaluate",),
    ],
)
def test_same_training_gives_the_same_records(watch: Watch, flags: tuple[str, ...]) -> None:
    """However the loop is written, samples, tokens, losses and norms are those of the plain loop."""
    plain, other = watch("train_tiny.py"), watch("train_tiny.py", *flags)
    assert other.probe_errors == []
    assert hashes(other, "data_hash") == hashes(plain, "data_hash")
    assert len(set(hashes(plain, "data_hash"))) == 3
    assert losses(other) == pytest.approx(losses(plain), rel=1e-5)
    for mine, reference in zip(other.updates, plain.updates, strict=True):
        assert mine["grad_norm"] == pytest.approx(reference["grad_norm"], rel=1e-4)
        assert mine["grad_norm_source"] == "foreach"
        assert (mine["samples"], mine["tokens"]) == (8, TOKENS)
        assert mine["label_tokens"] == LABELS
        assert mine["label_source"] == "cross_entropy"
        micro = int(flags[flags.index("--micro") + 1]) if "--micro" in flags else 1
        assert (mine["n"]["forward"], mine["n"]["backward"], mine["n"]["optimizer"]) == (micro, micro, 1)
        assert mine["steps"][0]["changed"] == mine["steps"][0]["sampled"] > 0
        assert mine["hyper"] == reference["hyper"]
        assert mine["hooks_ok"]
        assert mine["clocks_ok"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "zero", "fsdp"])
def test_data_parallel_ranks_add_up_to_the_plain_run(watch: Watch, kind: str) -> None:
    """Two ranks with accumulation show, summed, the samples and the loss of one process."""
    plain = watch("train_tiny.py")
    other = watch(
        "train_tiny.py",
        "--parallel",
        kind,
        "--micro",
        "2",
        "--optimizer",
        "zero" if kind == "zero" else "adamw",
        ranks=2,
    )
    assert other.probe_errors == []
    assert hashes(other, "data_hash") == hashes(plain, "data_hash")
    assert hashes(other, "label_hash") == hashes(plain, "label_hash")
    assert losses(other) == pytest.approx(losses(plain), rel=1e-5)
    for number, reference in enumerate(plain.updates):
        ranks = [other.of_kind("update", rank)[number] for rank in (0, 1)]
        assert sum(u["tokens"] for u in ranks) == TOKENS
        norms, sources = [u["grad_norm"] for u in ranks], {u["grad_norm_source"] for u in ranks}
        norm = math.hypot(*norms) if sources == {"foreach_shard"} else norms[0]
        assert norm == pytest.approx(reference["grad_norm"], rel=1e-4)
        assert sources == {"foreach_shard" if kind == "fsdp" else "foreach"}
        assert ranks[0]["comm_source"] == ("python" if kind == "fsdp" else "ddp_logger")
        assert 0 < ranks[0]["phase_ns"]["communication"] < ranks[0]["wall_ns"]


def test_zero_redundancy_optimizer_is_described_by_its_inner_optimizer(watch: Watch) -> None:
    """Sharding the optimizer state does not change the family, and each rank holds a part of the state."""
    run = watch("train_tiny.py", "--parallel", "zero", "--micro", "2", "--optimizer", "zero", ranks=2)
    records = [run.of_kind("optimizer", rank)[-1] for rank in (0, 1)]
    assert [r["class"] for r in records] == ["AdamW", "AdamW"]
    assert records[0]["wrapper"] == "ZeroRedundancyOptimizer"
    held = [r["state_dtypes"]["exp_avg:float32"] for r in records]
    assert sum(held) == records[0]["groups"][0]["numel"]


def test_clipping_reports_the_norm_it_computed(watch: Watch) -> None:
    """With clipping the norm is the one that clip_grad_norm_ returned, before clipping."""
    plain, clipped = watch("train_tiny.py"), watch("train_tiny.py", "--clip")
    first = clipped.updates[0]
    assert first["grad_norm_source"] == "clip"
    assert first["grad_norm"] == pytest.approx(plain.updates[0]["grad_norm"], rel=1e-5)
    assert first["clip_max"] == [0.5]


@pytest.mark.slow
def test_clipped_norm_of_shards_is_the_whole_norm(watch: Watch) -> None:
    """The distributed norm that clipping returns under FSDP2 is already that of the whole model."""
    clipped = watch("train_tiny.py", "--clip")
    run = watch("train_tiny.py", "--parallel", "fsdp", "--micro", "2", "--clip", ranks=2)
    for number, reference in enumerate(clipped.updates):
        ranks = [run.of_kind("update", rank)[number] for rank in (0, 1)]
        assert [u["grad_norm_source"] for u in ranks] == ["clip", "clip"]
        assert [u["grad_norm"] for u in ranks] == pytest.approx([reference["grad_norm"]] * 2, rel=1e-4)


def test_optimizers_stepped_together_are_one_update(watch: Watch) -> None:
    """Two steps without new work between them close one update, whose norm covers both parameter sets."""
    run, plain = watch("train_tiny.py", "--optimizer", "two"), watch("train_tiny.py")
    assert [u["n"]["optimizer"] for u in run.updates] == [2, 2, 2]
    assert [step["optimizer"] for step in run.updates[0]["steps"]] == [0, 1]
    assert run.updates[0]["grad_norm"] == pytest.approx(plain.updates[0]["grad_norm"], rel=1e-5)
    assert [group[0]["lr"] for group in run.updates[0]["hyper"]] == [0.1, 0.01]
    assert {r["class"] for r in run.of_kind("optimizer")} == {"SGD", "AdamW"}


def test_a_step_that_changes_nothing_is_seen(watch: Watch) -> None:
    """With learning rate zero no sampled element changes."""
    run = watch("train_tiny.py", "--optimizer", "frozen")
    assert [u["steps"][0]["changed"] for u in run.updates] == [0, 0, 0]
    assert run.updates[0]["steps"][0]["sampled"] > 0


def test_evaluation_belongs_to_the_update_that_follows_it(watch: Watch) -> None:
    """An evaluation after a step never lengthens that step's update."""
    run = watch("train_tiny.py", "--evaluate")
    assert [u["n"]["eval"] for u in run.updates] == [0, 1, 1]
    assert run.updates[0]["phase_ns"]["eval"] == 0
    assert run.updates[1]["phase_ns"]["eval"] > 0
    assert {u["n"]["forward"] for u in run.updates} == {1}


def test_data_wait_is_null_without_a_data_loader(watch: Watch) -> None:
    """What cannot be seen is null, never zero."""
    assert {u["phase_ns"]["data"] for u in watch("train_tiny.py").updates} == {None}
    assert all(u["phase_ns"]["data"] > 0 for u in watch("train_tiny.py", "--loader", "0").updates)


def test_gradients_of_a_closure_are_not_those_of_the_step_before(watch: Watch) -> None:
    """Where zero_grad, forward and backward run inside the step, the norm is that of the new gradients."""
    run, plain = watch("train_tiny.py", "--optimizer", "closure"), watch("train_tiny.py")
    assert hashes(run, "data_hash") == hashes(plain, "data_hash")
    norms, reference = ([u["grad_norm"] for u in r.updates] for r in (run, plain))
    assert norms == pytest.approx(reference, rel=1e-4)


def test_closure_evaluations_stay_inside_their_update(watch: Watch) -> None:
    """L-BFGS evaluates its closure several times within one step; the optimizer's own time excludes them."""
    run = watch("train_tiny.py", "--optimizer", "lbfgs")
    assert run.probe_errors == []
    for update in run.updates:
        assert update["n"]["optimizer"] == 1
        assert update["n"]["forward"] == update["n"]["backward"] >= 2
        assert update["tokens"] == TOKENS * update["n"]["forward"]
        assert update["grad_norm"] > 0
        assert update["hyper"][0][0]["lr"] == 0.1
        assert 0 < update["phase_ns"]["optimizer"] < update["wall_ns"]


def test_skipped_loss_scaler_step_is_no_update(watch: Watch) -> None:
    """A step skipped for infinite gradients is sent apart; the next update says so; losses are unscaled."""
    run, plain = watch("train_tiny.py", "--optimizer", "scaler"), watch("train_tiny.py")
    assert run.probe_errors == []
    assert [r["i"] for r in run.of_kind("skipped")] == [1]
    assert [u["i"] for u in run.updates] == [0, 1, 2]
    assert [u["n"]["skipped"] for u in run.updates] == [0, 1, 0]
    assert [u["n"]["forward"] for u in run.updates] == [1, 1, 1]
    assert sum(run.updates[0]["loss"]) == pytest.approx(sum(plain.updates[0]["loss"]), rel=1e-6)
    assert run.updates[0]["grad_norm"] == pytest.approx(plain.updates[0]["grad_norm"], rel=1e-5)


def test_autocast_is_reported(watch: Watch) -> None:
    """The compute dtype of the autocast region is part of the update."""
    assert watch("train_tiny.py", "--autocast").updates[0]["autocast"] == ["cpu:bfloat16"]
    assert watch("train_tiny.py").updates[0]["autocast"] == []


def test_dtypes_and_state_are_described(watch: Watch) -> None:
    """Parameters, gradients and optimizer state come with their dtypes."""
    run = watch("train_tiny.py")
    assert run.updates[0]["grad_dtypes"] == run.updates[0]["param_dtypes"] == ["float32"]
    record = run.of_kind("optimizer")[-1]
    assert record["groups"][0]["weight_decay"] == 0.1
    assert record["state_dtypes"]["exp_avg:float32"] == record["groups"][0]["numel"]


def test_times_add_up(watch: Watch) -> None:
    """Wall times are differences of end times, and the parts never exceed the whole."""
    run = watch("train_tiny.py", "--micro", "4")
    updates = run.updates
    for before, after in itertools.pairwise(updates):
        assert after["wall_ns"] == after["end_ns"] - before["end_ns"]
    for update in updates[1:]:
        parts = [v for k, v in update["phase_ns"].items() if k != "communication" and v is not None]
        assert sum(parts) + update["probe_ns"] <= update["wall_ns"]
        assert update["cpu_ns"] > 0
    assert [r["seq"] for r in run.ranks[0]] == list(range(len(run.ranks[0])))


def test_update_before_a_hard_exit_is_not_lost(watch: Watch) -> None:
    """A script that leaves through os._exit has all its updates reported but no end record."""
    run = watch("train_tiny.py", "--updates", "2", "--leave", "hard")
    assert [u["i"] for u in run.updates] == [0, 1]
    assert run.of_kind("end") == []
