"""Trains once, sets itself a data limit, then allocates in a forward pass until that stops it."""

from __future__ import annotations

import resource
import sys

import torch
from torch import nn


class Hungry(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4))
        self.kept: list[torch.Tensor] = []
        self.objects: list[list[int]] = []

    def forward(self, x: torch.Tensor, hungry: bool = False) -> torch.Tensor:
        while hungry:
            try:
                self.kept.append(torch.empty(1 << 20))
            except RuntimeError:
                self.fill()
        return (x @ self.weight).sum()

    def fill(self) -> None:
        """Leave nothing for Python either, then fail."""
        for size in (1 << 17, 1 << 12, 1 << 8):
            try:
                while True:
                    self.objects.append([0] * size)
            except MemoryError:
                continue
        self.kept.append(torch.empty(1 << 20))


def main() -> None:
    model = Hungry()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).backward()
    optimizer.step()
    data = next(line for line in open("/proc/self/status") if line.startswith("VmData"))  # noqa: SIM115
    limit = int(data.split()[1]) * 1024 + (64 << 20)
    hard = resource.RLIM_INFINITY if sys.argv[1] == "soft" else limit
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        model(torch.ones(2, 4), hungry=True)
    finally:
        model.objects.clear()
        sys.stdout.write(f"limit {limit} now {resource.getrlimit(resource.RLIMIT_DATA)[0]}\n")


if __name__ == "__main__":
    main()
