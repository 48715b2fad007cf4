"""Pre-train a small mixture-of-experts language model on one or more ranks.

Start: torchrun --standalone --nproc-per-node 2 train.py --config config.toml --output-dir out
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
import tomllib
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from data import Corpus, MicroBatches, batches
from model import GPT, ModelConfig, clip_gradients

Config = dict[str, Any]


def setup(config: Config) -> tuple[int, int, torch.device]:
    """Join the process group; returns rank, world size and this rank's device."""
    rank, world_size = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if config["device"] == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
        torch.set_num_threads(config["run"]["threads_per_rank"])
    if world_size > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    return rank, world_size, device


def build_model(config: Config, device: torch.device) -> GPT:
    """The network with identical initial weights on every rank, compiled as far as the configuration says."""
    performance = config["performance"]
    torch.manual_seed(config["workload"]["seed"])
    keys = ("attention", "activation_recompute", "checkpoint_variant", "loss", "experts_impl", "expert_rows")
    how = {key: performance[key] for key in keys}
    model = GPT(ModelConfig(**config["model"], **how)).to(device)
    scope = performance["compile"]
    if scope == "blocks":
        for block in model.blocks:
            block.compile()
    elif scope == "trunk":
        model.trunk = torch.compile(model.trunk, fullgraph=True)  # type: ignore[method-assign]
    elif scope == "all":
        model.compile(fullgraph=True)
    elif scope != "off":
        raise ValueError(f"compile is {scope!r}; it must be off, blocks, trunk or all")
    return model


def distribute(model: GPT, config: Config, world_size: int, device: torch.device) -> nn.Module:
    """Wrap the model for data parallelism: replicated (ddp, zero1) or sharded (fsdp)."""
    performance = config["performance"]
    if world_size == 1:
        return model
    if performance["data_parallel"] in ("fsdp", "fsdp_keep_params"):
        mesh = init_device_mesh(device.type, (world_size,))
        reshard = performance["data_parallel"] == "fsdp"
        for block in model.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=reshard)
        fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
        return model
    return DistributedDataParallel(
        model,
        bucket_cap_mb=performance["bucket_mb"],
        gradient_as_bucket_view=performance["reducer"] == "bucket_view",
        static_graph=performance["reducer"] == "static_graph",
        find_unused_parameters=performance["find_unused_parameters"],
    )


def build_optimizer(model: nn.Module, config: Config, world_size: int) -> torch.optim.Optimizer:
    """AdamW; matrices decay, gains of the norms do not."""
    workload, performance = config["workload"], config["performance"]
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": workload["weight_decay"]},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]
    options = {
        "lr": workload["learning_rate"],
        "betas": (workload["beta1"], workload["beta2"]),
        "foreach": performance["optimizer"] == "foreach",
        "fused": performance["optimizer"] == "fused",
    }
    if performance["data_parallel"] == "zero1" and world_size > 1:
        return ZeroRedundancyOptimizer(groups, torch.optim.AdamW, **options)
    return torch.optim.AdamW(groups, **options)


def learning_rate(update: int, workload: Config) -> float:
    """Linear warm-up, then a cosine down to a tenth at max_steps."""
    peak, warmup = float(workload["learning_rate"]), int(workload["warmup_steps"])
    if update < warmup:
        return peak * (update + 1) / warmup
    progress = (update - warmup) / max(1, workload["max_steps"] - warmup)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


def gradient_sync(model: nn.Module, wanted: bool) -> contextlib.AbstractContextManager[None]:
    """Context of a micro-batch whose gradients are (not) exchanged between ranks right away."""
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(wanted)
    elif isinstance(model, DistributedDataParallel) and not wanted:
        return model.no_sync()
    return contextlib.nullcontext()


def train_update(
    model: nn.Module, loader: Any, accumulation: int, config: Config, device: torch.device
) -> Tensor:
    """Forward and backward over one global batch; returns this rank's mean [loss, cross-entropy]."""
    performance = config["performance"]
    bf16 = performance["precision"] == "bfloat16"
    total = torch.zeros(2, device=device)
    for micro_batch in range(accumulation):
        tokens, targets = (part.to(device, non_blocking=True) for part in next(loader))
        last = micro_batch == accumulation - 1
        with gradient_sync(model, last or not performance["defer_gradient_sync"]):
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                loss, cross_entropy = model(tokens, targets)
            # Divided here: the gradient is that of the mean over the global batch, whatever the micro-batch.
            (loss / accumulation).backward()
        total += torch.stack([loss.detach(), cross_entropy]) / accumulation
    return total


def clip(model: nn.Module, max_norm: float) -> float:
    """Clip the gradients to a global norm; returns the norm before."""
    if isinstance(
        model, FSDPModule
    ):  # every rank holds a part of each gradient: torch's function adds them up
        norm = nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        return norm.full_tensor().item() if isinstance(norm, DTensor) else norm.item()
    return clip_gradients(model.parameters(), max_norm)


@torch.no_grad()
def save(model: nn.Module, updates: int, output_dir: Path, rank: int) -> None:
    """Write the full weights; every rank takes part because they may be sharded."""
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    weights = get_model_state_dict(model, options=options)
    if rank == 0:
        torch.save({"updates": updates, "model": weights}, output_dir / f"checkpoint-{updates}.pt")


def report(update: int, metrics: Tensor, norm: float, lr: float, seconds: float, rank: int) -> None:
    """One line on rank 0 with the averages over all ranks."""
    if dist.is_initialized():
        dist.all_reduce(metrics)
        metrics /= dist.get_world_size()
    loss, cross_entropy = metrics.tolist()
    if rank == 0:
        print(
            f"update {update} loss {loss:.6f} cross_entropy {cross_entropy:.6f} "
            f"grad_norm {norm:.4f} lr {lr:.3e} {seconds:.3f} s",
            flush=True,
        )


def train(config: Config, output_dir: Path) -> None:
    rank, world_size, device = setup(config)
    workload, performance, sizes = config["workload"], config["performance"], config["model"]
    updates, global_batch = workload["max_steps"], workload["global_batch"]
    corpus = Corpus(
        sizes["vocab"], sizes["sequence"], workload["corpus_words"], workload["seed"], updates * global_batch
    )
    order = MicroBatches(updates, global_batch, performance["micro_batch"], rank, world_size)
    loader = iter(batches(corpus, order, performance["workers"], performance["pin_memory"]))
    model = distribute(build_model(config, device), config, world_size, device)
    optimizer = build_optimizer(model, config, world_size)
    model.train()
    started = time.perf_counter()
    for update in range(updates):
        log = update % performance["log_every"] == 0
        lr = learning_rate(update, workload)
        for group in optimizer.param_groups:
            group["lr"] = lr
        metrics = train_update(model, loader, order.accumulation, config, device)
        norm = clip(model, workload["max_grad_norm"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if log:
            report(update, metrics, norm, lr, time.perf_counter() - started, rank)
        started = time.perf_counter()
        if (update + 1) % config["run"]["checkpoint_every"] == 0 or update + 1 == updates:
            save(model, update + 1, output_dir, rank)


def main() -> None:
    parser = argparse.ArgumentParser(description="Pre-train a small mixture-of-experts language model.")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--output-dir", type=Path, required=True)
    arguments = parser.parse_args()
    config = tomllib.loads(arguments.config.read_text())
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    train(config, arguments.output_dir)
    if dist.is_initialized():
        dist.barrier()  # a rank that leaves early makes the others fail in their last exchange
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
