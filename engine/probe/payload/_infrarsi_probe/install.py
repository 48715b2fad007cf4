"""Installs all hooks when torch has been imported and tells the agent which of them are in place."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from _infrarsi_probe import memory
from _infrarsi_probe.backward import BackwardWatch
from _infrarsi_probe.clipping import ClipWatch
from _infrarsi_probe.communication import CommunicationWatch
from _infrarsi_probe.compiled import CompileWatch
from _infrarsi_probe.dataloading import DataWatch
from _infrarsi_probe.digest import Digest
from _infrarsi_probe.forward import ForwardWatch
from _infrarsi_probe.integrity import Integrity
from _infrarsi_probe.losses import LossWatch
from _infrarsi_probe.optimizers import OptimizerWatch
from _infrarsi_probe.precision import AutocastWatch, ScalerWatch
from _infrarsi_probe.roots import Roots
from _infrarsi_probe.shield import shield_package
from _infrarsi_probe.stopwatch import Stopwatch

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


def install(session: Session, torch: Any) -> None:
    """Install every hook; one that fails is reported as unavailable and the others stand."""
    session.torch = torch
    session.stopwatch = Stopwatch(session)
    session.integrity = Integrity(session)
    session.memory = memory.RecentMemory(torch)
    session.digest = Digest(session)
    session.roots = Roots(session)
    session.optimizers = OptimizerWatch(session)
    session.communication = CommunicationWatch(session)
    backward = BackwardWatch(session)
    hooks: list[tuple[str, Callable[[], None]]] = [
        ("module_call", ForwardWatch(session).install),
        ("autograd", backward.install),
        ("optimizer", session.optimizers.install),
        ("compile", CompileWatch(session).install),
        ("clip_grad_norm", ClipWatch(session).install),
        ("cross_entropy", LossWatch(session).install),
        ("loss_scaler", ScalerWatch(session, backward).install),
        ("autocast", AutocastWatch(session).install),
        ("data_loader", DataWatch(session).install),
        ("communication", session.communication.install),
        ("compile_shield", shield_package),
    ]
    installed = []
    for name, hook in hooks:
        try:
            hook()
            installed.append(name)
        except Exception as error:
            session.report(name, error)
    session.updates.begin()
    fields = {
        "version": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "device_name": None,  # asking now would start CUDA on the wrong device; see the start signature
        "rlimit_data": memory.data_limit()[0],
        "hooks": installed,
        "unavailable": session.unavailable,
    }
    session.channel.send("torch", fields)
