"""The installed product, used from a project whose own modules have the same names."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

DECOY = "raise RuntimeError('a module of the training project was imported by the tool')\n"
ENGINE = "FACTOR = 1.0\n"
TRAIN = '''\
"""One rank, a linear layer, a thousand updates."""

import argparse

import engine  # the project's own
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float, default=0.1)
rate = parser.parse_args().rate * engine.FACTOR
torch.manual_seed(0)
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=rate)
for _ in range(1000):
    batch = torch.randn(256, 64)
    loss = (model(batch) - batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
'''
TASK = """\
[task]
name = "tiny"
launcher = "command"
command = ["train.py", "--rate", "0.1"]

[allocation]
nodes = 1
gpus_per_node = 1
device = "cpu"

[measurement]
warmup_updates = 1
measured_updates = 3

[[parameters]]
mechanism = "learning_rate"
values = [0.1, 0.2]
bindings = [{ flag = "--rate" }]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A training project with an `engine.py` of its own, in a folder where `slurm.py` must not be touched."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(TRAIN)
    (folder / "engine.py").write_text(ENGINE)
    (folder / "infrarsi.toml").write_text(TASK)
    return folder


@pytest.fixture
def decoys(tmp_path: Path) -> Path:
    """A folder to start from whose modules fail when they are imported."""
    folder = tmp_path / "start"
    folder.mkdir()
    for name in ("engine", "slurm", "infrarsi_tui"):
        (folder / f"{name}.py").write_text(DECOY)
    return folder


def _call(*words: str | Path, start: Path, timeout: float = 120.0) -> subprocess.CompletedProcess[str]:
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))
    }
    environment["OMP_NUM_THREADS"] = "1"
    return subprocess.run(
        [str(word) for word in words],
        cwd=start,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


def test_the_checkout_is_not_what_runs(installed: Path, tmp_path: Path) -> None:
    """All three packages come from the environment that the wheel was installed into."""
    code = "import engine, slurm, infrarsi_tui\nfor m in (engine, slurm, infrarsi_tui): print(m.__file__)"
    done = _call(installed / "python", "-c", code, start=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [Path(line).is_relative_to(installed.parent) for line in done.stdout.split()] == [True] * 3


def test_version_from_a_folder_of_decoys(installed: Path, decoys: Path) -> None:
    """The console script is not misled by modules in the current folder."""
    done = _call(installed / "infrarsi", "--version", start=decoys)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("infrarsi ")


def test_shipped_samples_are_valid_tasks(installed: Path, decoys: Path) -> None:
    """The samples inside the wheel can be checked where they lie, and the mechanism table can be read."""
    (samples,) = installed.parent.glob("lib/python3*/site-packages/infrarsi_tui/_data/sample_tasks")
    done = _call(installed / "infrarsi", "check", samples / "dense_gpt", "--json", start=decoys)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"] == "dense_gpt"
    code = "from engine.mechanisms.table import load_mechanisms; print(len(load_mechanisms()))"
    table = _call(installed / "python", "-c", code, start=installed)
    assert int(table.stdout) > 50, table.stderr


@pytest.mark.slow
def test_a_trial_from_a_folder_of_decoys(installed: Path, decoys: Path, project: Path) -> None:
    """Tool and jobs import ours, the training imports its own; twice the learning rate is rejected."""
    out = decoys / "study"
    done = _call(
        installed / "infrarsi", "trial", project, "--set", "learning_rate=0.2", "--out", out, "--json",
        start=decoys, timeout=280.0,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    value: dict[str, Any] = json.loads(done.stdout)
    assert value["outcome"] == "rejected"
    assert value["verified"] is False
    failed = {each["name"] for each in value["invariants"] if each["status"] == "failed"}
    assert "learning_rate_trace" in failed
    status = _call(installed / "infrarsi", "status", out, "--json", start=decoys)
    summary = json.loads(status.stdout)
    assert summary["state"] == "done"
    assert summary["baseline"]["step_time_s"] > 0
    assert not list(project.rglob("__pycache__"))
