"""A small Llama-style decoder: RMSNorm, rotary positions, grouped-query attention, SwiGLU, untied head."""

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
    attention: str = "eager"
    activation_recompute: str = "none"
    checkpoint_variant: str = "non_reentrant"
    loss: str = "one_hot"
    loss_chunks: int = 4

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


class FeedForward(nn.Module):
    """SwiGLU (Shazeer, 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.width, config.ffn, bias=False)
        self.up = nn.Linear(config.width, config.ffn, bias=False)
        self.down = nn.Linear(config.ffn, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(config.width), Attention(config)
        self.feed_forward_norm, self.feed_forward = RMSNorm(config.width), FeedForward(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.feed_forward(self.feed_forward_norm(x))


class GPT(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocab, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.02)

    def trunk(self, tokens: Tensor) -> Tensor:
        """Hidden states [batch, sequence, width] of tokens [batch, sequence]."""
        x = self.embedding(tokens)
        for block in self.blocks:
            full = self.config.activation_recompute == "full" and self.training
            x = self.config.recompute(block, x) if full else block(x)
        return self.norm(x)

    def head_loss(self, hidden: Tensor, targets: Tensor, statistics: bool) -> tuple[Tensor, Tensor]:
        """Summed cross-entropy of hidden [tokens, width], and the statistics of these tokens."""
        logits = self.head(hidden).float()
        if self.config.loss == "one_hot":
            one_hot = F.one_hot(targets, self.config.vocab).float()
            loss = -(one_hot * torch.log_softmax(logits, -1)).sum()
        else:
            loss = F.cross_entropy(logits, targets, reduction="sum")
        return loss, token_statistics(logits, targets) if statistics else logits.new_zeros(3)

    def forward(self, tokens: Tensor, targets: Tensor, statistics: bool = False) -> tuple[Tensor, Tensor]:
        """Mean cross-entropy of the micro-batch, and its mean token statistics (zeros if not wanted)."""
        hidden, targets = self.trunk(tokens).flatten(0, 1), targets.flatten()
        if self.config.loss == "chunked":
            # The logits are the largest tensor of the step: never hold those of all tokens at once.
            chunks = self.config.loss_chunks
            parts = zip(hidden.chunk(chunks), targets.chunk(chunks), strict=True)
            results = [self.config.recompute(self.head_loss, h, t, statistics) for h, t in parts]
            loss, sums = (torch.stack(column).sum(0) for column in zip(*results, strict=True))
        else:
            loss, sums = self.head_loss(hidden, targets, statistics)
        return loss / targets.numel(), sums / targets.numel()


@torch.no_grad()
def token_statistics(logits: Tensor, targets: Tensor) -> Tensor:
    """Sums over tokens of: target ranks first, among the first five, 1 / rank."""
    order = logits.argsort(dim=-1, descending=True)
    rank = 1 + (order == targets[:, None]).float().argmax(-1)
    columns = [rank <= 1, rank <= 5, 1 / rank]
    return torch.stack([column.float() for column in columns]).sum(1)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float) -> float:
    """Scale the gradients down to the given total norm; returns the norm before."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    norm = math.sqrt(sum(g.float().pow(2).sum().item() for g in gradients))
    for gradient in gradients:
        if norm > max_norm:
            gradient.mul_(max_norm / norm)
    return norm
