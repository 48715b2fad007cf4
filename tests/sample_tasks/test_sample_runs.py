"""The samples as processes: two ranks, real torch errors, clean ends."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.sample_tasks.projects import SAMPLES, set_values, tiny_copy

from recording.recorder import Measurement, Recorder  # isort: skip  (sample_tasks is put on the path above)
from recording.sample import Sample  # isort: skip


@pytest.fixture(scope="module", params=["dense_gpt", "moe_gpt"])
def recorder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorder]:
    """A recorder of a tiny sample: runs two forked ranks per trial."""
    folder = tmp_path_factory.mktemp(request.param)
    sample = Sample.load(tiny_copy(request.param, folder / "project"))
    recorder = Recorder(sample, folder, timeout_s=60)
    yield recorder
    recorder.stop()


def run(recorder: Recorder, **changes: Any) -> Measurement:
    return recorder.run({**recorder.sample.baseline(), **changes}, "test")


def losses(recorder: Recorder) -> list[float]:
    """Of the last trial, one per update."""
    log = (recorder.scratch / "trial" / "log.0").read_text()
    return [float(loss) for loss in re.findall(r"^update \d+ loss (\S+)", log, re.MULTILINE)]


@pytest.mark.slow
def test_layouts_train_the_same(recorder: Recorder) -> None:
    """Two ranks: micro-batch and sharding change no loss of any update."""
    assert run(recorder)["status"] == "ok"
    reference = losses(recorder)
    assert len(reference) == 5  # the sixth update ends the process before its line
    assert reference[-1] < reference[0]
    for changes in (
        {"micro_batch_size": 4, "activation_recompute": "none", "grad_sync_deferral": True},
        {"dp_shard_stage": "zero1", "optimizer_impl": "fused"},
        {"dp_shard_stage": "zero2", "optimizer_impl": "foreach"},
        {"dp_shard_stage": "zero3", "micro_batch_size": 2},
        {"ddp_reducer_hints": "static_graph", "dataloader_workers": 1},
    ):
        assert run(recorder, **changes)["status"] == "ok", changes
        assert losses(recorder) == pytest.approx(reference, abs=1e-4), changes


CONFLICTS = [
    ({"micro_batch_size": 8}, "ValueError: global_batch 8 is not divisible by"),
    ({"attention_backend": "flex"}, "FlexAttention does not support backward on CPU"),
    (
        {"checkpoint_variant": "reentrant", "ddp_find_unused_parameters": True},
        "mark a variable ready only once",
    ),
    ({"checkpoint_variant": "reentrant", "loss_impl": "chunked_ce"}, "mark a variable ready only once"),
    ({"ddp_reducer_hints": "static_graph", "grad_sync_deferral": True}, "expect_autograd_hooks_"),
]


@pytest.mark.slow
def test_conflicts(recorder: Recorder) -> None:
    """Combinations that no rule excludes in advance end with the error of torch or of the script."""
    prefetch = [
        ({"dataloader_prefetch": 4}, "prefetch_factor option could only be specified in multiprocessing")
    ]
    known = recorder.sample.baseline()
    for changes, message in CONFLICTS + [(c, m) for c, m in prefetch if c.keys() <= known.keys()]:
        row = run(recorder, **changes)
        assert row["status"] == "conflict"
        assert message in row["message"]


LARGE = {"micro_batch_size": 4, "activation_recompute": "none"}
GROUPED = {**LARGE, "moe_grouped_gemm": "grouped", "compute_dtype": "bf16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sample", "too_large", "remedy"),
    [
        ("dense_gpt", LARGE, {"attention_backend": "sdpa", "loss_impl": "fused_ce", "compute_dtype": "bf16"}),
        ("moe_gpt", GROUPED, {"shape_policy": "pad_to_multiple"}),
    ],
)
def test_memory_edge(tmp_path: Path, sample: str, too_large: dict[str, Any], remedy: dict[str, Any]) -> None:
    """At full size, under the memory limit of the task: out of memory, and fitting after the remedy."""
    recorder = Recorder(Sample.load(SAMPLES / sample), tmp_path, timeout_s=120)
    assert run(recorder, **too_large)["status"] == "oom"
    assert run(recorder, **too_large, **remedy)["status"] == "ok"
    recorder.stop()


@pytest.mark.slow
@pytest.mark.parametrize("sample", ["dense_gpt", "moe_gpt"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_torchrun(project: Callable[[str], Path], sample: str, ranks: int) -> None:
    """Started as the README says: ends with 0, one line per update, full weights in the checkpoint."""
    folder = project(sample)
    set_values(folder / "config.toml", {"max_steps": 3})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += ["train.py", "--config", "config.toml", "--output-dir", "out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if line.startswith("update")] == [
        "0",
        "1",
        "2",
    ]
    checkpoint = torch.load(folder / "out" / "checkpoint-3.pt")
    assert checkpoint["updates"] == 3
    assert checkpoint["model"]["embedding.weight"].shape == (128, 32)
