"""A small training project and a task file for it, to be changed one thing at a time."""

from __future__ import annotations

import textwrap
from pathlib import Path

CONFIG = """\
# training configuration
[train]
micro_batch = 2   # per rank
accumulation = 2
global_batch = 8
compile = false

[data]
workers = 4
"""

MODEL_YAML = """\
# model
attention: "eager"  # kernel
fsdp:
  stage: 2
  flags: [a, b]
"""

TASK = """\
[task]
name = "tiny"
command = ["train.py", "--precision", "fp32", "--lr=0.1", "--out", "{output_dir}"]

[allocation]
nodes = 1
gpus_per_node = 2
device = "cpu"

[constraints]
require = ["global_batch % (micro_batch_size * world_size) == 0"]

[scope]
editable = ["model.py"]
locked = ["train.py"]

[[parameters]]
mechanism = "micro_batch_size"
values = [1, 2, 4, 8]
initial = [1, 2]
bindings = [{ file = "config.toml", key = "train.micro_batch" }]

[[parameters]]
mechanism = "gradient_accumulation"
derived = "global_batch // (micro_batch_size * world_size)"
bindings = [{ file = "config.toml", key = "train.accumulation" }]

[[parameters]]
mechanism = "compute_dtype"
values = { fp32 = "fp32", bf16 = "bf16" }
bindings = [{ flag = "--precision" }]

[[parameters]]
mechanism = "tf32_matmul"
values = [false, true]
when = "compute_dtype == 'fp32'"
bindings = [{ python = "train.py", name = "TF32" }]

[[parameters]]
mechanism = "allocator_config"
values = { default = { unset = true }, big = "max_split:128" }
bindings = [{ env = "ALLOCATOR" }]

[[parameters]]
mechanism = "attention_backend"
values = ["eager", "sdpa"]
bindings = [{ file = "model.yaml", key = "attention" }]
"""

TRAIN = '''\
"""Trains."""
TF32 = False  # faster
SEED = 7
'''


def make_project(folder: Path, task: str = TASK, **files: str) -> Path:
    """Write the project, return the task file; `files` replaces or adds texts (name with _ for the dot)."""
    texts = {"config.toml": CONFIG, "model.yaml": MODEL_YAML, "train.py": TRAIN, "model.py": "W = 1\n"}
    texts |= {name.replace("_", "."): text for name, text in files.items()}
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    file = folder / "infrarsi.toml"
    file.write_text(task, encoding="utf-8")
    return file


def with_parameter(text: str) -> str:
    """The task with one more [[parameters]] entry (at index 6)."""
    return TASK + "\n[[parameters]]\n" + textwrap.dedent(text).lstrip()
