"""A small mixture-of-experts decoder: RMSNorm, rotary positions, grouped-query attention, routed SwiGLU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.utils.checkpoint import checkpoint

ROWS_MULTIPLE = 32


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of the network, and how (not what) it computes."""

    vocab: int
    sequence: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    experts: int
    experts_active: int
    balance_weight: float
    attention: str = "eager"
    activation_recompute: str = "none"
    checkpoint_variant: str = "non_reentrant"
    loss: str = "fused"
    loss_chunks: int = 4
    experts_impl: str = "loop"
    expert_rows: str = "dynamic"

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    def recompute(self, function: Callable[..., Any], *inputs: Tensor) -> Any:
        """Run the function without keeping its activations; backward runs it again."""
        return checkpoint(function, *inputs, use_reentrant=self.checkpoint_variant == "reentrant")


def rotate(x: Tensor) -> Tensor:
    """Rotary position embedding of x [batch, heads, sequence, head_width].

    In float64: at late positions the angles of a float32 are off.
    """
    half = x.shape[-1] // 2
    frequencies = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64, device=x.device), frequencies)
    angles = torch.cat([angles, angles], -1).expand(x.shape[0], x.shape[1], -1, -1)
    first, second = x.double().chunk(2, -1)
    return (x.double() * angles.cos() + torch.cat([-second, first], -1) * angles.sin()).to(x.dtype)


def causal_mask(batch: int, heads: int, sequence: int, like: Tensor) -> Tensor:
    """Additive mask [batch, heads, sequence, sequence]: 0 where a token may look, else minus infinity."""
    blocked = torch.full((sequence, sequence), float("-inf"), device=like.device, dtype=like.dtype).triu(1)
    return blocked.expand(batch, heads, -1, -1).contiguous()


def causal(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """The same rule for flex attention."""
    return query >= key


class RMSNorm(nn.Module):
    """Root-mean-square normalisation (Zhang and Sennrich, 2019), in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (y * self.weight).to(x.dtype)


class Attention(nn.Module):
    """Causal self-attention with fewer key/value heads than query heads."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        kv_width = config.kv_heads * config.head_width
        self.query = nn.Linear(config.width, config.width, bias=False)
        self.key = nn.Linear(config.width, kv_width, bias=False)
        self.value = nn.Linear(config.width, kv_width, bias=False)
        self.output = nn.Linear(config.width, config.width, bias=False)

    def core(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Attention of q [batch, heads, sequence, head_width] over k and v of fewer heads."""
        config = self.config
        batch, heads, sequence, _ = q.shape
        q, k = rotate(q), rotate(k)
        if config.attention == "flex":
            blocks = create_block_mask(causal, None, None, sequence, sequence, device=q.device.type)
            return flex_attention(q, k, v, block_mask=blocks, enable_gqa=True)
        k = k.repeat_interleave(config.heads // config.kv_heads, dim=1)
        v = v.repeat_interleave(config.heads // config.kv_heads, dim=1)
        mask = causal_mask(batch, heads, sequence, q)
        if config.attention == "sdpa":
            return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        scores = q @ k.transpose(-1, -2) / math.sqrt(config.head_width)
        return torch.softmax(scores.float() + mask, -1).to(v.dtype) @ v

    def forward(self, x: Tensor) -> Tensor:
        config = self.config
        batch, sequence, width = x.shape
        q = self.query(x).view(batch, sequence, config.heads, config.head_width).transpose(1, 2)
        k = self.key(x).view(batch, sequence, config.kv_heads, config.head_width).transpose(1, 2)
        v = self.value(x).view(batch, sequence, config.kv_heads, config.head_width).transpose(1, 2)
        selective = config.activation_recompute == "selective" and self.training
        y = config.recompute(self.core, q, k, v) if selective else self.core(q, k, v)
        return self.output(y.transpose(1, 2).reshape(batch, sequence, width))


class Experts(nn.Module):
    """SwiGLU experts; every token goes to the few that its router prefers (Shazeer et al., 2017)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.width, config.experts, bias=False)
        self.gate = nn.Parameter(torch.empty(config.experts, config.width, config.ffn))
        self.up = nn.Parameter(torch.empty(config.experts, config.width, config.ffn))
        self.down = nn.Parameter(torch.empty(config.experts, config.ffn, config.width))
        for weight in (self.gate, self.up, self.down):
            bound = 1 / math.sqrt(weight.shape[1])
            nn.init.uniform_(weight, -bound, bound)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and numbers of the chosen experts, each [batch, sequence, experts_active]; balance loss.

        The balance loss (Fedus et al., 2021) of a sequence is experts * sum over experts of (share of its
        choices that went there) * (mean router probability). It is averaged over sequences. Computed
        over a whole micro-batch instead, as often seen, it would depend on how the global batch is cut into
        micro-batches, and so would what is trained.
        """
        experts = self.config.experts
        probabilities = torch.softmax(self.router(x).float(), -1)
        weights, chosen = probabilities.topk(self.config.experts_active, -1)
        share = F.one_hot(chosen, experts).float().mean((1, 2))
        balance = experts * (share * probabilities.mean(1)).sum(-1).mean()
        return weights / weights.sum(-1, keepdim=True), chosen, balance

    def loop(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """One expert after the other; x [tokens, width], weights and chosen [tokens, experts_active]."""
        result = torch.zeros_like(x)
        for expert in range(self.config.experts):
            weight = (weights * (chosen == expert)).sum(-1, keepdim=True)  # 0 where the token went elsewhere
            hidden = F.silu(x @ self.gate[expert]) * (x @ self.up[expert])
            result = result + (weight * (hidden @ self.down[expert])).to(x.dtype)
        return result

    def sorted_rows(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Choices by expert: positions in chosen.flatten(), first row of their expert; rows per expert."""
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        rows = F.one_hot(flat, self.config.experts).sum(0)
        return order, (rows.cumsum(0) - rows)[flat[order]], rows

    def padded(self, rows: Tensor) -> Tensor:
        """Rows rounded up: a kernel is prepared once per shape, and raw counts are new ones every time."""
        if self.config.expert_rows == "dynamic":
            return rows
        return (rows + ROWS_MULTIPLE - 1) // ROWS_MULTIPLE * ROWS_MULTIPLE

    def batched(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """All experts in one batched matmul, each with as many rows as the busiest one has."""
        order, first, rows = self.sorted_rows(chosen)
        capacity = int(self.padded(rows.max()))
        slot = chosen.flatten()[order] * capacity + torch.arange(len(order), device=x.device) - first
        token = order // self.config.experts_active
        inputs = x.new_zeros(self.config.experts * capacity, x.shape[1]).index_copy(0, slot, x[token])
        inputs = inputs.view(self.config.experts, capacity, -1)
        hidden = F.silu(torch.bmm(inputs, self.gate)) * torch.bmm(inputs, self.up)
        outputs = torch.bmm(hidden, self.down).flatten(0, 1)[slot]
        return self.combine(x, outputs, weights, order)

    def grouped(self, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """All experts in one grouped matmul over rows sorted by expert."""
        order, first, rows = self.sorted_rows(chosen)
        taken = self.padded(rows)
        ends = taken.cumsum(0)
        slot = (ends - taken)[chosen.flatten()[order]] + torch.arange(len(order), device=x.device) - first
        # Autocast leaves grouped_mm alone, so its inputs are cast here.
        dtype = torch.bfloat16 if torch.is_autocast_enabled(x.device.type) else x.dtype
        size = len(order) if self.config.expert_rows == "dynamic" else int(ends[-1])
        inputs = x.new_zeros(size, x.shape[1], dtype=dtype)
        inputs = inputs.index_copy(0, slot, x[order // self.config.experts_active].to(dtype))
        gate, up, down = (weight.to(dtype) for weight in (self.gate, self.up, self.down))
        offsets = ends.to(torch.int32)
        hidden = F.silu(F.grouped_mm(inputs, gate, offs=offsets)) * F.grouped_mm(inputs, up, offs=offsets)
        return self.combine(x, F.grouped_mm(hidden, down, offs=offsets)[slot], weights, order)

    def combine(self, x: Tensor, outputs: Tensor, weights: Tensor, order: Tensor) -> Tensor:
        """Weighted sum per token of the outputs [tokens * experts_active, width], sorted by expert."""
        weighted = (outputs * weights.flatten()[order, None]).to(x.dtype)
        return torch.zeros_like(x).index_add(0, order // self.config.experts_active, weighted)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen, balance = self.route(x)
        implementations = {"loop": self.loop, "batched": self.batched, "grouped": self.grouped}
        y = implementations[self.config.experts_impl](
            x.flatten(0, 1), weights.flatten(0, 1), chosen.flatten(0, 1)
        )
        return y.view_as(x), balance


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(config.width), Attention(config)
        self.experts_norm, self.experts = RMSNorm(config.width), Experts(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x + self.attention(self.attention_norm(x))
        y, balance = self.experts(self.experts_norm(x))
        return x + y, balance


class GPT(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def trunk(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states [batch, sequence, width] of tokens [batch, sequence]; balance loss of all layers."""
        x = self.embedding(tokens)
        total = x.new_zeros(())
        for block in self.blocks:
            full = self.config.activation_recompute == "full" and self.training
            x, balance = self.config.recompute(block, x) if full else block(x)
            total = total + balance
        return self.norm(x), total

    def head_loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Summed cross-entropy of hidden [tokens, width]."""
        return F.cross_entropy(self.head(hidden).float(), targets, reduction="sum")

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The micro-batch's loss (mean cross-entropy + weighted balance loss); its cross-entropy alone."""
        hidden, balance = self.trunk(tokens)
        hidden, targets = hidden.flatten(0, 1), targets.flatten()
        if self.config.loss == "chunked":
            # The logits are the largest tensor of the step: never hold those of all tokens at once.
            chunks = self.config.loss_chunks
            parts = zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True)
            loss = torch.stack([self.config.recompute(self.head_loss, h, t) for h, t in parts]).sum()
        else:
            loss = self.head_loss(hidden, targets)
        loss = loss / targets.numel()
        return loss + self.config.balance_weight * balance, loss.detach()


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to the given total norm; returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(g.float().pow(2).sum().item() for g in gradients))
    for gradient in gradients:
        if norm > max_norm:
            gradient.mul_(max_norm / norm)
    return norm
