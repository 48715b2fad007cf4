"""A known response surface: five parameters, a memory cliff, one conflict, and the task that exposes them."""

from __future__ import annotations

import itertools
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from engine.schema.base import Scalar

RANKS = 2
LIMIT_GIB = 2.0
HEADROOM = 0.04
BASE_STEP_S = 0.2

CONFIG = """\
# training configuration
[train]
micro_batch = 1   # per rank
recompute = "full"
compile = "off"

[model]
attention = "eager"

[data]
workers = 0
"""

TRAIN = '''\
"""Never run: the cluster of these tests is simulated."""
'''

KNOBS: dict[str, tuple[str, tuple[Scalar, ...]]] = {
    "micro_batch_size": ("train.micro_batch", (1, 2, 4, 8)),
    "activation_recompute": ("train.recompute", ("full", "selective", "none")),
    "compile_scope": ("train.compile", ("off", "region", "model")),
    "attention_backend": ("model.attention", ("eager", "sdpa", "flex")),
    "dataloader_workers": ("data.workers", (0, 2, 4)),
}
"""Mechanism → key in config.toml and values; the first value is the unchanged job's."""

_GAIN: dict[str, dict[Scalar, float]] = {
    "micro_batch_size": {2: 0.10, 4: 0.15, 8: 0.18},
    "activation_recompute": {"selective": 0.14, "none": 0.24},
    "compile_scope": {"region": 0.05, "model": 0.12},
    "attention_backend": {"sdpa": 0.10, "flex": 0.04},
    "dataloader_workers": {2: 0.02, 4: 0.03},
}
_ACTIVATIONS: dict[Scalar, float] = {"full": 0.2, "selective": 0.5, "none": 1.0}

Configuration = Mapping[str, Scalar]
Fate = Literal["trains", "out_of_memory", "conflict"]


@dataclass(frozen=True)
class Surface:
    """What a configuration really does.

    gain: factor of all log speed-ups; cheats: (mechanism, value) that halves the tokens and the time;
    drifts: (mechanism, value) that trains to another loss; baseline_fails: the unchanged job raises.
    """

    gain: float = 1.0
    noise_sd: float = 0.004
    cheats: tuple[str, Scalar] | None = None
    drifts: tuple[str, Scalar] | None = None
    baseline_fails: bool = False

    def log_speedup(self, configuration: Configuration) -> float:
        """True log speed-up over the unchanged job, by honest means."""
        return self.gain * sum(_GAIN[name].get(value, 0.0) for name, value in configuration.items())

    def memory_gib(self, configuration: Configuration) -> float:
        """Peak per rank."""
        activations = _ACTIVATIONS[configuration["activation_recompute"]]
        return 0.5 + 0.4 * float(configuration["micro_batch_size"]) * activations

    def fate(self, configuration: Configuration) -> Fate:
        """How a run of it ends."""
        if configuration["attention_backend"] == "flex" and configuration["dataloader_workers"] == 2:
            return "conflict"
        if self.memory_gib(configuration) > LIMIT_GIB:
            return "out_of_memory"
        return "trains"

    def deployable(self, configuration: Configuration) -> bool:
        """Whether it trains and leaves the headroom free."""
        fits = self.memory_gib(configuration) <= LIMIT_GIB * (1.0 - HEADROOM)
        return fits and self.fate(configuration) == "trains" and not self.is_wrong(configuration)

    def is_wrong(self, configuration: Configuration) -> bool:
        """Whether it changes what is trained."""
        marks = [mark for mark in (self.cheats, self.drifts) if mark is not None]
        return any(configuration[name] == value for name, value in marks)

    def optimum(self) -> float:
        """Best true speed-up of any deployable configuration."""
        return math.exp(max(self.log_speedup(each) for each in all_configurations() if self.deployable(each)))


def all_configurations() -> list[dict[str, Scalar]]:
    """The whole space."""
    values = [values for _, values in KNOBS.values()]
    return [dict(zip(KNOBS, combination, strict=True)) for combination in itertools.product(*values)]


def task_text(*, extra: str = "", budget: str = "", advisor: str = "none") -> str:
    """infrarsi.toml; `budget` and `extra` are further lines."""
    text = textwrap.dedent(
        f"""\
        [task]
        name = "on paper"
        command = ["train.py"]

        [allocation]
        nodes = 1
        gpus_per_node = {RANKS}
        device = "cpu"
        memory_limit_gib = {LIMIT_GIB}

        [measurement]
        warmup_updates = 2
        measured_updates = 5

        [constraints]
        memory_headroom = {HEADROOM}

        [scope]
        editable = ["model.py"]

        [advisor]
        kind = "{advisor}"

        [budget]
        verification_share = 0.25
        """
    )
    text += budget + "\n" + extra + "\n"
    for name, (key, values) in KNOBS.items():
        listed = ", ".join(f'"{value}"' if isinstance(value, str) else str(value) for value in values)
        text += f'\n[[parameters]]\nmechanism = "{name}"\nvalues = [{listed}]\n'
        text += f'bindings = [{{ file = "config.toml", key = "{key}" }}]\n'
    return text


def write_project(folder: Path, task: str | None = None) -> Path:
    """The project on disk; returns its folder."""
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG)
    (folder / "train.py").write_text(TRAIN)
    (folder / "model.py").write_text("WIDTH = 8\n")
    (folder / "infrarsi.toml").write_text(task_text() if task is None else task)
    return folder


def read_configuration(config: Mapping[str, Mapping[str, Scalar]]) -> dict[str, Scalar]:
    """The configuration that a parsed config.toml holds."""
    found: dict[str, Scalar] = {}
    for name, (key, _) in KNOBS.items():
        section, _, leaf = key.partition(".")
        found[name] = config[section][leaf]
    return found
