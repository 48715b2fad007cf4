"""Training loops that call the model in unusual ways; argv[1] names one."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, WIDTH, LENGTH, ROWS = 101, 32, 16, 4


class TinyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.middle = nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.middle(self.embedding(tokens))))


class KeywordModel(nn.Module):
    """Called like the models of common libraries: by keyword, the loss and the shift of labels inside."""

    def __init__(self, inner: TinyModel) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self,
        position_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        input_ids: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        logits = self.inner(input_ids)[:, :-1]
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())}


class HelperOptimizer(torch.optim.Optimizer):
    """Its arithmetic is a compiled function, which is no training step of its own."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.01})
        self.arithmetic = torch.compile(lambda p, g, rate: p.sub_(rate * g), backend="eager")

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self.arithmetic(parameter, parameter.grad, group["lr"])


def main() -> None:
    kind = sys.argv[1]
    torch.manual_seed(3)
    model = TinyModel()
    wrapped = KeywordModel(model)
    parameters = list(model.parameters())
    optimizer = HelperOptimizer(parameters) if kind == "helper" else torch.optim.AdamW(parameters, lr=1e-2)
    criterion = nn.CrossEntropyLoss()
    padding = torch.ones(ROWS, LENGTH, dtype=torch.int64)
    padding[:, -2:] = 0
    positions = torch.arange(LENGTH).expand(ROWS, LENGTH)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if kind == "keywords":
            fed = {"position_ids": positions, "attention_mask": padding, "input_ids": x, "labels": y}
            return wrapped(**fed)["loss"]
        if kind == "stages":
            hidden = torch.relu(model.middle(model.embedding(x)))
            return criterion(model.head(hidden).flatten(0, 1), y.flatten())
        return criterion(model(x).flatten(0, 1), y.flatten())

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        loss_of(x, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    if kind == "whole_step":
        step = torch.compile(step, backend="eager")
    generator = torch.Generator().manual_seed(7)
    for _ in range(5):
        rows = torch.randint(0, VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
        step(rows[:, :-1], rows[:, 1:])


if __name__ == "__main__":
    main()
