"""Names, contents, ties and groups of the model, whatever wraps or shards it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

Watch = Callable[..., Any]
MODULUS = 1 << 64


def contents(record: dict[str, Any]) -> dict[str, int | None]:
    return {p["name"]: None if p["hash"] is None else int(p["hash"], 16) for p in record["params"]}


def test_signature_names_every_parameter_once(watch: Watch) -> None:
    """Ties point to the first name, buffers are listed, and groups are known at the end."""
    run = watch("train_tiny.py")
    start, end = run.signature("start"), run.signature("end")
    assert start["model"] == "TinyModel"
    assert start["unavailable"] is None
    names = [p["name"] for p in start["params"]]
    assert names[0] == "embedding.weight"
    assert next(p for p in start["params"] if p["name"] == "head.weight")["tied_to"] == "embedding.weight"
    assert [b["name"] for b in start["buffers"]] == ["steps"]
    assert {p["group"] for p in start["params"]} == {None}
    assert {p["group"] for p in end["params"]} == {0}
    assert all(a != b for a, b in zip(contents(start).values(), contents(end).values(), strict=True) if a)


def test_groups_are_numbered_over_all_optimizers(watch: Watch) -> None:
    """Parameters of a second optimizer belong to a group of their own."""
    end = watch("train_tiny.py", "--optimizer", "two").signature("end")
    groups = {p["name"]: p["group"] for p in end["params"]}
    assert groups["embedding.weight"] == groups["head.weight"] == 0
    assert {group for name, group in groups.items() if name.startswith("blocks")} == {1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_signature_does_not_depend_on_sharding(watch: Watch, kind: str) -> None:
    """Replicas repeat the plain model's hashes, shards add up to them; end states agree to rounding."""
    plain = watch("train_tiny.py")
    run = watch("train_tiny.py", "--parallel", kind, "--micro", "2", "--optimizer", "adamw", ranks=2)
    reference = contents(plain.signature("start"))
    ranks = [contents(run.signature("start", rank)) for rank in (0, 1)]
    assert list(ranks[0]) == list(reference)
    for name, expected in reference.items():
        values = [rank[name] for rank in ranks]
        if expected is None:
            assert values == [None, None]
        elif kind == "fsdp":
            assert sum(values) % MODULUS == expected
        else:
            assert values == [expected, expected]
    shapes = [[p["shape"] for p in r["params"]] for r in (run.signature("start"), plain.signature("start"))]
    assert shapes[0] == shapes[1]
    assert run.signature("start")["model"] == "TinyModel"
    share = 1.0 if kind == "fsdp" else 0.5
    for index, expected in enumerate(plain.signature("end")["params"]):
        if expected["sumsq"] is not None:
            parts = [run.signature("end", rank)["params"][index]["sumsq"] for rank in (0, 1)]
            assert share * sum(parts) == pytest.approx(expected["sumsq"], rel=1e-5)


def test_perturbation_moves_the_end_state_and_hardly_the_loss(watch: Watch) -> None:
    """One ulp on the weights changes the end state, the losses only in their last digits, repeatably."""
    plain = watch("train_tiny.py")
    moved = watch("train_tiny.py", perturb_ulp_seed=5)
    again = watch("train_tiny.py", "--loader", "0", perturb_ulp_seed=5)
    other = watch("train_tiny.py", perturb_ulp_seed=6)
    assert contents(moved.signature("start")) == contents(plain.signature("start"))
    assert contents(moved.signature("end")) != contents(plain.signature("end"))
    assert contents(moved.signature("end")) == contents(again.signature("end"))
    assert contents(moved.signature("end")) != contents(other.signature("end"))
    elements = sum(math.prod(p["shape"]) for p in moved.signature("start")["params"] if not p["tied_to"])
    assert moved.updates[0]["perturbed_elements"] == pytest.approx(elements * 2 / 3, rel=0.05)
    for mine, reference in zip(moved.updates, plain.updates, strict=True):
        assert sum(mine["loss"]) == pytest.approx(sum(reference["loss"]), rel=1e-5)


@pytest.mark.slow
def test_perturbation_is_the_same_for_shards_and_the_whole(watch: Watch) -> None:
    """Two FSDP ranks move the same elements in the same direction as one process does."""
    flags = ("--updates", "1", "--optimizer", "frozen")
    plain = watch("train_tiny.py", *flags, perturb_ulp_seed=5)
    run = watch("train_tiny.py", *flags, "--parallel", "fsdp", ranks=2, perturb_ulp_seed=5)
    ranks = [contents(run.signature("end", rank)) for rank in (0, 1)]
    for name, expected in contents(plain.signature("end")).items():
        if expected is not None:
            assert sum(rank[name] for rank in ranks) % MODULUS == expected


def test_signature_can_be_left_out(watch: Watch) -> None:
    """The agent may ask for no signature."""
    assert watch("train_tiny.py", signature=False).of_kind("signature") == []
