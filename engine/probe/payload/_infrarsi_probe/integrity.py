"""Checks at every update that the hooks and the clocks still are ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from _infrarsi_probe import clocks

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class Integrity:
    """A list of (name, holder, attribute, expected object) for attributes and for registered callbacks."""

    def __init__(self, session: Session) -> None:
        self._attributes: list[tuple[str, Any, str, Any]] = []
        self._registered: list[tuple[str, Any, Any]] = []
        torch = session.torch
        self._device_clocks = [
            (name, holder, attribute, vars(holder).get(attribute))
            for name, holder, attribute in _device_clock_places(torch)
        ]

    def replace(self, name: str, holder: Any, attribute: str, wrapper: Callable[..., Any]) -> None:
        """Install a wrapper as an attribute of a class or module, and watch it from now on."""
        setattr(holder, attribute, wrapper)
        self._attributes.append((name, vars(holder), attribute, wrapper))

    def watch_registered(self, name: str, registry: Any, hook: Any) -> None:
        """Watch a callback that was registered in a dictionary of torch."""
        self._registered.append((name, registry, hook))

    def changed_hooks(self) -> list[str]:
        """Names of hooks that something has replaced or removed."""
        changed = [
            name
            for name, namespace, attribute, expected in self._attributes
            if namespace.get(attribute) is not expected
        ]
        for name, registry, hook in self._registered:
            if not any(value is hook for value in registry.values()):
                changed.append(name)
        return changed

    def changed_clocks(self) -> list[str]:
        """Names of clocks, host or device, that something has replaced."""
        changed = clocks.changed()
        for name, holder, attribute, expected in self._device_clocks:
            if vars(holder).get(attribute) is not expected:
                changed.append(name)
        return changed


def _device_clock_places(torch: Any) -> list[tuple[str, Any, str]]:
    places = [("torch.cuda.synchronize", torch.cuda, "synchronize")]
    if hasattr(torch._C, "_cuda_synchronize"):
        places.append(("torch._C._cuda_synchronize", torch._C, "_cuda_synchronize"))
    event = getattr(torch.cuda, "Event", None)
    if event is not None:
        for method in ("record", "elapsed_time", "synchronize"):
            places.append(("torch.cuda.Event." + method, event, method))
    return places
