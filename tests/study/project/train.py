"""A job of one rank on the CPU: a small model, and a pause per update that only wastes time."""

from __future__ import annotations

import sys
import time
import tomllib
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, BATCH = 64, 32, 16, 8


def main() -> None:
    settings = tomllib.loads(Path("config.toml").read_text())["train"]
    if settings["broken"]:
        raise FileNotFoundError("no such corpus: corpus.bin")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    generator = torch.Generator().manual_seed(1)
    for _ in range(10_000):
        rows = torch.randint(VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        loss = functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(settings["pause_ms"] / 1000)
    sys.exit(0)


if __name__ == "__main__":
    main()
