"""A tiny data-parallel language model; the environment variable VARIANT changes how, or what, it trains."""

from __future__ import annotations

import contextlib
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

VARIANT = os.environ.get("VARIANT", "baseline")
GLOBAL_BATCH, SEQUENCE, VOCAB, WIDTH = 16, 64, 256, 96


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        mixed = hidden + torch.cumsum(hidden, 1) / 64
        return hidden + self.down(functional.gelu(self.up(self.norm(mixed))))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks[:3] if VARIANT == "skip_layer" else self.blocks:
            hidden = block(hidden)
        return functional.cross_entropy(self.head(hidden).flatten(0, 1), targets.flatten())


def main() -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model: nn.Module = Model()
    if VARIANT == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world,))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        wrapped = fully_shard(model, mesh=mesh)
    else:
        wrapped = DistributedDataParallel(model, find_unused_parameters=VARIANT == "skip_layer")
    rate = 2e-3 if VARIANT == "learning_rate" else 1e-3
    settings = {"lr": rate, "weight_decay": 0.1, "fused": VARIANT in ("large_micro_batch", "bf16")}
    if VARIANT == "zero1":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=rate, weight_decay=0.1)
    else:
        optimizer = torch.optim.AdamW(wrapped.parameters(), **settings)
    micro = 4 if VARIANT == "large_micro_batch" else 2
    per_rank = GLOBAL_BATCH // world
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        rows = torch.randint(VOCAB, (GLOBAL_BATCH, SEQUENCE + 1), generator=generator)
        rows[:, 1::2] = rows[:, :-1:2]
        mine = rows[rank * per_rank : (rank + 1) * per_rank]
        if VARIANT == "half_sequence":
            mine = mine[:, : SEQUENCE // 2 + 1]
        batches = list(mine.split(micro))
        if VARIANT == "skip_micro_batches":
            batches = batches[::2]
        if VARIANT == "forward_only":
            for batch in batches[1::2]:
                wrapped(batch[:, :-1], batch[:, 1:])
            batches = batches[::2]
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            idle = contextlib.nullcontext() if last or VARIANT == "fsdp" else wrapped.no_sync()
            precision = (
                torch.autocast("cpu", torch.bfloat16) if VARIANT == "bf16" else contextlib.nullcontext()
            )
            with idle:
                with precision:
                    loss = wrapped(batch[:, :-1], batch[:, 1:]) / len(batches)
                loss.backward()
        nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
