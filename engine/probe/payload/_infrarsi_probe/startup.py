"""What happens at interpreter start in a rank: hello, then wait for `import torch`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Optional

from _infrarsi_probe import clocks
from _infrarsi_probe.channel import Channel
from _infrarsi_probe.session import Session
from _infrarsi_probe.settings import Settings, is_rank

ACCEPT_TIMEOUT_S = 10.0


def start(environment: Mapping[str, str]) -> Optional[Session]:
    """Register with the agent and arm the probe; None where this is no rank or the agent refuses it."""
    if not is_rank(environment):
        return None
    readings = clocks.readings()
    settings = Settings(environment)
    channel = Channel(settings.socket_path)
    channel.send("hello", _hello(settings, readings))
    if channel.wait_for(("accept", "refuse"), ACCEPT_TIMEOUT_S) != "accept":
        channel.close()
        return None
    session = Session(settings, channel)
    os.register_at_fork(after_in_child=session.deactivate)
    session.exceptions.install()
    session.ending.install()
    if "torch" in sys.modules:
        _install(session, sys.modules["torch"])
    else:
        sys.meta_path.insert(0, _TorchFinder(session))
    return session


def _hello(settings: Settings, readings: dict[str, int]) -> dict[str, Any]:
    return {
        "rank": settings.rank,
        "local_rank": settings.local_rank,
        "world": settings.world,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "argv": list(getattr(sys, "orig_argv", None) or getattr(sys, "argv", [])),
        "python": sys.executable,
        "clock": readings,
    }


def _install(session: Session, torch: ModuleType) -> None:
    try:
        from _infrarsi_probe.install import install

        install(session, torch)
    except Exception as error:
        session.report("install", error)


class _TorchFinder:
    """Meta path entry for `torch` alone: lets the import run, then installs the hooks and removes itself.

    It stays when a script only looks for the spec, as libraries do before they import torch.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        """The spec that the other finders give, with a loader that calls us after the module has run."""
        if name != "torch":
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        found = (finder.find_spec(name, path, target) for finder in others if hasattr(finder, "find_spec"))
        spec = next((candidate for candidate in found if candidate is not None), None)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                _install(self._session, module)

        spec.loader.exec_module = exec_module
        return spec
