"""Sees outermost backward passes: one for each micro-batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class BackwardWatch:
    """Replaces `torch.autograd.backward` (which Tensor.backward calls) and `torch.autograd.grad`."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._tensor = session.torch.Tensor
        self._parameter = session.torch.nn.Parameter
        self.loss_scale: Any = None  # set by the loss scaler for the next backward

    def install(self) -> None:
        """Wrap both entry points; nested calls (recomputation) pass through."""
        session = self.session
        autograd = session.torch.autograd
        compiling = session.torch.compiler.is_compiling
        busy = session.busy
        backward_original, grad_original = autograd.backward, autograd.grad

        @passes_through
        def observed(original: Any, roots: Any, args: Any, kwargs: Any) -> Any:
            self.enter(roots)
            mark = session.stopwatch.start()
            busy[0] = session.in_backward = True
            try:
                return original(roots, *args, **kwargs)
            except Exception as error:
                session.exceptions.note("backward", error)
                raise
            finally:
                busy[0] = session.in_backward = False
                self.leave(mark)

        @passes_through
        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or busy[0]:
                return backward_original(tensors, *args, **kwargs)
            return observed(backward_original, tensors, args, kwargs)

        @passes_through
        def grad(outputs: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling() or busy[0] or not self.of_parameters(inputs):
                return grad_original(outputs, inputs, *args, **kwargs)
            return observed(grad_original, outputs, (inputs, *args), kwargs)

        session.integrity.replace("autograd_backward", autograd, "backward", backward)
        session.integrity.replace("autograd_grad", autograd, "grad", grad)

    def of_parameters(self, inputs: Any) -> bool:
        """Whether gradients are taken with respect to parameters, as a training step does."""
        first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs
        return isinstance(first, self._parameter)

    @quietly("backward")
    def enter(self, roots: Any) -> None:
        """Keep the scalar roots: they are the loss."""
        session = self.session
        session.event()
        tensors = [roots] if isinstance(roots, self._tensor) else list(roots)
        for root in tensors:
            if isinstance(root, self._tensor) and root.numel() == 1:
                session.updates.current.losses.append((root.detach().clone(), self.loss_scale))

    @quietly("backward")
    def leave(self, mark: Any) -> None:
        """Count the micro-batch."""
        session = self.session
        self.loss_scale = None
        nested = session.optimizers.depth > 0
        session.optimizers.nested_backward = nested or session.optimizers.nested_backward
        elapsed = session.stopwatch.stop("backward", mark, nested)
        if nested and mark[1] is None:
            session.updates.current.ns["optimizer"] -= elapsed
        session.updates.current.n["backward"] += 1
