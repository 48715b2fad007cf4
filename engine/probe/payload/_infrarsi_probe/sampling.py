"""A few elements of a few parameters, rotating over the updates: shows whether a step changed values.

Version counters are no evidence: fused kernels leave them alone, and a step of size zero moves them.
"""

from __future__ import annotations

from typing import Any

from _infrarsi_probe.tensors import local

PARAMETERS = 8
ELEMENTS = 4


class Sample:
    """Up to 8 trainable parameters, others at each update, and copies of 4 elements of each."""

    def __init__(self, torch: Any, parameters: list[Any], update: int) -> None:
        self._torch = torch
        self._update = update
        count = len(parameters)
        chosen = range(count) if count <= PARAMETERS else _spread(count, update)
        self.parameters = [parameters[k] for k in chosen if parameters[k].requires_grad]
        self._views = self._view()
        self._before = self._read()

    def compare(self) -> tuple[int, int]:
        """Elements that have changed since, and elements looked at."""
        if self._before is None:
            return 0, 0
        changed = int((self._read() != self._before).sum())
        if changed == 0:  # the parameters may have been given new storage
            self._views = self._view()
            after = self._read()
            if after is not None and after.shape == self._before.shape:
                changed = int((after != self._before).sum())
        return changed, int(self._before.numel())

    def _read(self) -> Any:
        return self._torch.cat(self._views) if self._views else None

    def _view(self) -> list[Any]:
        strided = self._torch.strided
        views, device = [], None
        for parameter in self.parameters:
            values = local(parameter).detach()
            count = values.numel()
            if count == 0 or values.layout is not strided or (device is not None and values.device != device):
                continue
            device = values.device
            if values.is_contiguous():
                elements = min(ELEMENTS, count)
                stride = count // elements
                offset = values.storage_offset() + self._update % stride
                views.append(values.as_strided((elements,), (stride,), offset))
            else:
                views.append(values[:1].reshape(-1)[:ELEMENTS])
        return views


def _spread(count: int, update: int) -> list[int]:
    return [(k * count // PARAMETERS + update) % count for k in range(PARAMETERS)]
