"""Sees outermost module calls: the forward passes of the training and of evaluations."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class ForwardWatch:
    """Replaces `nn.Module.__call__` on the class.

    Global forward hooks would put every submodule on the slow path and fire twice under torch.compile.
    """

    def __init__(self, session: Session) -> None:
        self.session = session
        self._grad_enabled = session.torch.is_grad_enabled

    def install(self) -> None:
        """Install before torch._dynamo is imported: it then takes our function for the original one."""
        session = self.session
        module_class = session.torch.nn.Module
        original = module_class.__call__
        busy = session.busy

        @passes_through
        def outermost(module: Any, args: Any, kwargs: Any) -> Any:
            self.enter(module, args, kwargs)
            training = session.training_forward
            mark = session.stopwatch.start()
            busy[0] = True
            try:
                return original(module, *args, **kwargs)
            except Exception as error:
                session.exceptions.note("forward", error)
                raise
            finally:
                busy[0] = False
                session.training_forward = False
                self.leave(mark, training)

        @passes_through
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if busy[0]:
                return original(self, *args, **kwargs)
            return outermost(self, args, kwargs)

        session.integrity.replace("module_call", module_class, "__call__", __call__)

    @quietly("forward")
    def enter(self, module: Any, args: Any, kwargs: Any) -> None:
        """An outermost call begins: the previous update is over; look at the inputs of a training call."""
        session = self.session
        session.event()
        training = self._grad_enabled() and module.training
        session.training_forward = training
        if training:
            session.training_thread = threading.get_ident()
            session.roots.observe(module, args, kwargs)

    @quietly("forward")
    def leave(self, mark: Any, training: bool) -> None:
        """The outermost call is over, normally or not."""
        session = self.session
        phase = "forward" if training else "eval"
        nested = session.optimizers.depth > 0
        elapsed = session.stopwatch.stop(phase, mark, nested)
        if nested and mark[1] is None:
            session.updates.current.ns["optimizer"] -= elapsed
        if not training:
            session.updates.current.n["eval"] += 1
