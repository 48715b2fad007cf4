"""What the command line answers, and a task to ask it about."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

MINIMAL_TASK = """\
[task]
name = "tiny"
launcher = "command"
command = ["train.py"]

[allocation]
nodes = 1
gpus_per_node = 1
device = "cpu"

[[parameters]]
mechanism = "micro_batch_size"
values = [1, 2]
default = 1
bindings = [{ env = "MICRO_BATCH" }]
"""


@dataclass(frozen=True)
class Answer:
    """What one call wrote and returned."""

    code: int
    stdout: str
    stderr: str

    @property
    def value(self) -> dict[str, Any]:
        """Stdout as the one JSON object it must be."""
        value = json.loads(self.stdout)
        assert isinstance(value, dict)
        return value


Infrarsi = Callable[..., Answer]
