"""A tiny language model trained in the ways that the probe must see; behaviour is chosen by flags."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import sys
from typing import Any

importlib.util.find_spec("torch")  # as libraries do before they import it

import torch  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

VOCABULARY, WIDTH, LENGTH, BATCH = 101, 32, 16, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 33)
        self.down = nn.Linear(33, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))


class TinyModel(nn.Module):
    def __init__(self, recompute: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("steps", torch.zeros(3))
        self.recompute = recompute

    def forward(self, tokens: torch.Tensor, targets: torch.Tensor | None = None) -> torch.Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            if self.recompute == "none":
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.recompute == "reentrant")
        logits = self.head(x)
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--updates", type=int, default=6)
    parser.add_argument("--micro", type=int, default=1)
    parser.add_argument("--parallel", choices=("none", "ddp", "fsdp", "zero"), default="none")
    parser.add_argument("--optimizer", default="adamw")
    parser.add_argument("--compile", default="none")
    parser.add_argument("--recompute", default="none")
    parser.add_argument("--loss", choices=("inside", "outside"), default="inside")
    parser.add_argument("--clip", action="store_true")
    parser.add_argument("--autocast", action="store_true")
    parser.add_argument("--loader", type=int, default=-1, help="number of workers; -1: no DataLoader")
    parser.add_argument("--evaluate", action="store_true")
    parser.add_argument("--attack", default="none")
    parser.add_argument("--leave", default="none")
    return parser.parse_args()


def make_optimizer(kind: str, model: nn.Module) -> list[torch.optim.Optimizer]:
    parameters = list(model.parameters())
    if kind == "two":
        return [torch.optim.SGD(parameters[:1], lr=0.1), torch.optim.AdamW(parameters[1:], lr=1e-2)]
    if kind == "lbfgs":
        return [torch.optim.LBFGS(parameters, lr=0.1, max_iter=2)]
    if kind == "zero":
        from torch.distributed.optim import ZeroRedundancyOptimizer

        return [ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-2, weight_decay=0.1)]
    flags = {"adamw": {}, "foreach": {"foreach": True}, "loop": {"foreach": False}, "fused": {"fused": True}}
    rate = 0.0 if kind == "frozen" else 1e-2
    return [torch.optim.AdamW(parameters, lr=rate, weight_decay=0.1, **flags.get(kind, {}))]


def parallel(model: nn.Module, kind: str) -> nn.Module:
    if kind in ("ddp", "zero"):
        return nn.parallel.DistributedDataParallel(model)
    if kind == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for block in model.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def compiled(model: nn.Module, kind: str) -> nn.Module:
    if kind == "module":
        return torch.compile(model, backend="eager")
    if kind == "blocks":
        for block in model.blocks:
            block.compile(backend="eager")
    return model


def batches(updates: int, rank: int, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(7)
    found = []
    for _ in range(updates):
        rows = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), generator=generator)
        labels = rows[:, 1:].clone()
        labels[:, :3] = -100
        part = slice(rank * BATCH // world, (rank + 1) * BATCH // world)
        found.append((rows[part, :-1], labels[part]))
    return found


def attack(kind: str) -> None:
    if kind == "clock":
        import time

        time.perf_counter = lambda: 0.0
        time.perf_counter_ns = lambda: 0
    if kind == "hooks":
        nn.Module.__call__ = nn.Module._wrapped_call_impl


class Trainer:
    """Runs updates in the way that the flags ask for."""

    def __init__(self, options: argparse.Namespace, model: nn.Module) -> None:
        self.options = options
        self.model = model
        self.optimizers = make_optimizer(options.optimizer, model)
        self.scaler = (
            torch.amp.GradScaler("cpu", init_scale=1024.0) if options.optimizer == "scaler" else None
        )
        self.loss = self.step_loss
        if options.compile == "function":
            self.loss = torch.compile(self.step_loss, backend="eager")
        self.step = self.optimizers[0].step
        if options.compile == "step":
            self.step = torch.compile(self.step, backend="eager")

    def step_loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if self.options.loss == "inside":
            return self.model(x, y)
        return functional.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def backward(self, x: torch.Tensor, y: torch.Tensor, update: int) -> torch.Tensor:
        options = self.options
        for micro in range(options.micro):
            last = micro == options.micro - 1
            hold = hasattr(self.model, "no_sync") and not last
            region: Any = (
                torch.autocast("cpu", torch.bfloat16) if options.autocast else contextlib.nullcontext()
            )
            with self.model.no_sync() if hold else contextlib.nullcontext():
                with region:
                    loss = self.loss(x[micro :: options.micro], y[micro :: options.micro]) / options.micro
                if self.scaler is None:
                    loss.backward()
                else:
                    scaled = self.scaler.scale(loss)
                    (scaled * float("inf") if update == 1 else scaled).backward()
        if options.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        return loss

    def update(self, x: torch.Tensor, y: torch.Tensor, number: int) -> None:
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        if self.options.optimizer in ("lbfgs", "closure"):

            def closure() -> torch.Tensor:
                self.optimizers[0].zero_grad()
                return self.backward(x, y, number)

            self.optimizers[0].step(closure)
            return
        self.backward(x, y, number)
        if self.scaler is not None:
            self.scaler.step(self.optimizers[0])
            self.scaler.update()
        elif len(self.optimizers) == 1:
            self.step()
        else:
            for optimizer in self.optimizers:
                optimizer.step()


def main() -> None:
    options = arguments()
    rank, world = 0, 1
    if options.parallel != "none":
        torch.distributed.init_process_group("gloo")
        rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(3)
    model = compiled(parallel(TinyModel(options.recompute), options.parallel), options.compile)
    trainer = Trainer(options, model)
    data: Any = batches(options.updates, rank, world)
    if options.loader >= 0:
        data = torch.utils.data.DataLoader(data, batch_size=None, num_workers=options.loader)
    for number, (x, y) in enumerate(data):
        trainer.update(x, y, number)
        if options.evaluate:
            model.eval()
            with torch.no_grad():
                model(x, y)
            model.train()
        if number == 1:
            attack(options.attack)
    if options.leave == "hard":
        os._exit(0)
    if "torch._dynamo" in sys.modules:
        counters = torch._dynamo.utils.counters
        print("graphs", counters["stats"]["unique_graphs"], "breaks", sum(counters["graph_break"].values()))
        print("calls", counters["stats"]["calls_captured"])
    print("finished")


if __name__ == "__main__":
    main()
