"""Raises where argv[1] says, after one good update."""

from __future__ import annotations

import contextlib
import sys

import torch
from torch import nn


class Picky(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != 4:
            raise ValueError("wrong width")
        return (x * self.weight).sum()


class FailingOptimizer(torch.optim.SGD):
    fail = False

    def step(self, closure: None = None) -> None:
        if self.fail:
            raise ArithmeticError("no step today")
        super().step(closure)


def main() -> None:
    where = sys.argv[1]
    model = Picky()
    optimizer = FailingOptimizer(model.parameters(), lr=0.1)
    for update in range(3):
        if where == "swallowed" and update == 1:
            with contextlib.suppress(ValueError):
                model(torch.ones(2, 3))
        model(torch.ones(2, 4)).backward()
        optimizer.fail = where in ("step", "swallowed_step") and update == 1
        try:
            optimizer.step()
        except ArithmeticError:
            if where == "step":
                raise
        if where == "uncaught" and update == 1:
            raise KeyError("elsewhere")
    if where == "hook_replaced":
        sys.excepthook = lambda *_: None
        raise KeyError("unseen by the hook")


if __name__ == "__main__":
    main()
