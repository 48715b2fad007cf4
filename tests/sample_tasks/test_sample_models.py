"""The sample networks compute the same thing however they are told to compute it."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sample_tasks.projects import CHEATS, SAMPLES, apply, load, patches

GLOBAL_BATCH = 8
Result = tuple[float, list[torch.Tensor]]


def gradients(project: Path, micro_batch: int = GLOBAL_BATCH, **how: Any) -> Result:
    """Loss of one global batch and the gradient of every parameter, from seeded initial weights."""
    config = tomllib.loads((project / "config.toml").read_text())
    model_file, data_file = load(project / "model.py"), load(project / "data.py")
    torch.manual_seed(0)
    model = model_file.GPT(model_file.ModelConfig(**config["model"], **how))
    corpus = data_file.Corpus(config["model"]["vocab"], config["model"]["sequence"], 50, 7, GLOBAL_BATCH)
    order = data_file.MicroBatches(1, GLOBAL_BATCH, micro_batch, 0, 1)
    loss = 0.0
    for samples in order:
        tokens, targets = (torch.stack(part) for part in zip(*(corpus[i] for i in samples), strict=True))
        part = model(tokens, targets)[0] / len(order)
        part.backward()
        loss += part.item()
    return loss, [parameter.grad for parameter in model.parameters()]


def assert_same(first: Result, second: Result, tolerance: float) -> None:
    assert first[0] == pytest.approx(second[0], abs=tolerance)
    assert distance(first, second) < 1e-4


def distance(first: Result, second: Result) -> float:
    """Distance of the gradients, relative to their norm."""
    change = sum((a - b).pow(2).sum().item() for a, b in zip(first[1], second[1], strict=True))
    return math.sqrt(change / sum(a.pow(2).sum().item() for a in first[1]))


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
@pytest.mark.parametrize(("sample", "tolerance"), [("dense_gpt", 1e-5), ("moe_gpt", 1e-4)])
def test_micro_batches(
    project: Callable[[str], Path], sample: str, tolerance: float, micro_batch: int
) -> None:
    """Loss and gradients of an update do not depend on the micro-batch, with experts and without."""
    folder = project(sample)
    assert_same(gradients(folder), gradients(folder, micro_batch=micro_batch), tolerance)


@pytest.mark.parametrize(
    "how",
    [
        {"attention": "sdpa"},
        {"activation_recompute": "full"},
        {"activation_recompute": "selective", "attention": "sdpa"},
        {"activation_recompute": "full", "checkpoint_variant": "reentrant"},
        {"loss": "fused"},
        {"loss": "chunked"},
        {"loss": "chunked", "checkpoint_variant": "reentrant"},
    ],
    ids=str,
)
@pytest.mark.parametrize(("sample", "tolerance"), [("dense_gpt", 1e-5), ("moe_gpt", 1e-4)])
def test_ways_to_compute(
    project: Callable[[str], Path], sample: str, tolerance: float, how: dict[str, Any]
) -> None:
    """Attention kernel, recomputation and loss implementation change how, never what."""
    folder = project(sample)
    assert_same(gradients(folder), gradients(folder, micro_batch=4, **how), tolerance)


@pytest.mark.parametrize("rows", ["dynamic", "padded"])
@pytest.mark.parametrize("implementation", ["batched", "grouped"])
def test_experts(project: Callable[[str], Path], implementation: str, rows: str) -> None:
    """Batched and grouped experts, padded or not, equal the loop over experts."""
    folder = project("moe_gpt")
    other = gradients(folder, micro_batch=4, experts_impl=implementation, expert_rows=rows)
    assert_same(gradients(folder), other, 1e-4)


@pytest.mark.parametrize(("sample", "patch"), patches(*SAMPLES.glob("*/patches")))
def test_honest_patches(project: Callable[[str], Path], sample: str, patch: Path) -> None:
    """Every patch of a sample applies, names its mechanism, and changes neither loss nor gradients."""
    folder = project(sample)
    assert patch.read_text().startswith("# mechanism: ")
    before = gradients(folder)
    apply(patch, folder)
    assert_same(before, gradients(folder), 1e-4)


@pytest.mark.parametrize("sample", ["dense_gpt", "moe_gpt"])
def test_all_honest_patches_together(project: Callable[[str], Path], sample: str) -> None:
    """The patches of a sample can be stacked, in the order of their names."""
    folder = project(sample)
    before = gradients(folder)
    for patch in sorted((folder / "patches").glob("*.patch")):
        apply(patch, folder)
    assert_same(before, gradients(folder), 1e-4)


@pytest.mark.parametrize(("sample", "patch"), patches(*CHEATS.iterdir()))
def test_cheats_apply(project: Callable[[str], Path], sample: str, patch: Path) -> None:
    """Every cheat applies, says who should catch it, and leaves Python that compiles."""
    folder = project(sample)
    assert "\n# caught by: " in patch.read_text()
    apply(patch, folder)
    for file in ("model.py", "train.py"):
        compile((folder / file).read_text(), file, "exec")


@pytest.mark.parametrize(
    "name", ["half_sequence", "drop_tokens", "silent_bf16", "skip_layer", "detached_keys"]
)
@pytest.mark.parametrize("sample", ["dense_gpt", "moe_gpt"])
def test_cheats_change_the_gradient(project: Callable[[str], Path], sample: str, name: str) -> None:
    """A cheat inside the network is no equivalent rewriting: its gradient is another one."""
    folder = project(sample)
    before = gradients(folder)
    apply(CHEATS / sample / f"{name}.patch", folder)
    assert distance(before, gradients(folder)) > 1e-3
