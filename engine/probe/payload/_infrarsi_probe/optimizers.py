"""Sees optimizer steps through torch's global hooks: an update ends with the last step before new work."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe.hyper import described_groups, state_dtypes, step_hyper, unwrapped
from _infrarsi_probe.sampling import Sample
from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through
from _infrarsi_probe.signature import replica
from _infrarsi_probe.tensors import dtype_name, is_sharded, local

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

DESCRIBED_UPDATES = 2


class OptimizerWatch:
    """Steps may nest (ZeroRedundancyOptimizer, wrappers): only the outermost counts."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.depth = 0
        self.nested_backward = False
        self._outer_frame = 0
        self._mark: Any = None
        self._sample: Any = None
        self._live: list[weakref.ref[Any]] = []  # every optimizer built, in order
        self._stepped: list[weakref.ref[Any]] = []  # index = number of the optimizer in the records

    def install(self) -> None:
        """Register the hooks and remember optimizers as they are built."""
        session = self.session
        module = sys.modules["torch.optim.optimizer"]
        compiling = session.torch.compiler.is_compiling

        def pre(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                self.before_step(optimizer, args, kwargs, sys._getframe(1))

        def post(optimizer: Any, args: Any, kwargs: Any) -> None:
            if not compiling():
                self.after_step(optimizer)

        initialise = module.Optimizer.__init__

        @passes_through
        def __init__(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            initialise(optimizer, *args, **kwargs)
            self.remember(optimizer)

        module.register_optimizer_step_pre_hook(pre)
        module.register_optimizer_step_post_hook(post)
        module.Optimizer.__init__ = __init__
        session.integrity.watch_registered("optimizer_pre", module._global_optimizer_pre_hooks, pre)
        session.integrity.watch_registered("optimizer_post", module._global_optimizer_post_hooks, post)

    @quietly("optimizer list")
    def remember(self, optimizer: Any) -> None:
        """An optimizer was built."""
        self._live.append(weakref.ref(optimizer))

    @quietly("optimizer step")
    def before_step(self, optimizer: Any, args: Any, kwargs: Any, frame: Any) -> None:
        """A step begins; `frame` is the frame that called the hook."""
        if self.depth and not _is_on_stack(self._outer_frame, frame):
            self.depth = 0  # the step that was open ended in an exception that somebody caught
        self.depth += 1
        if self.depth > 1:
            return
        self._outer_frame = id(frame)
        session = self.session
        closure = (len(args) > 1 and args[1] is not None) or kwargs.get("closure") is not None
        if closure and session.updates.pending:
            session.event()  # its forward and backward come inside the step: this is a new update
        self._begin(optimizer, closure)
        self._mark = session.stopwatch.start()

    def _begin(self, optimizer: Any, closure: bool) -> None:
        session = self.session
        self.nested_backward = False
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._sample = Sample(session.torch, parameters, session.updates.index)
        collected = session.updates.current
        collected.hyper[self.number_of(optimizer)] = step_hyper(optimizer, session.torch.Tensor)
        collected.param_dtypes.update(dtype_name(p.dtype) for p in self._sample.parameters)
        if not closure:
            self._measure_gradients(optimizer, parameters)

    @quietly("optimizer step")
    def after_step(self, optimizer: Any) -> None:
        """A step has ended without an exception."""
        self.depth = max(0, self.depth - 1)
        if self.depth:
            return
        session = self.session
        session.stopwatch.stop("optimizer", self._mark)
        session.stopwatch.synchronize()
        session.updates.mark_end()
        number = self.number_of(optimizer)
        collected = session.updates.current
        if self.nested_backward or not collected.grad_dtypes:
            self._measure_gradients(optimizer, [p for g in optimizer.param_groups for p in g["params"]])
        sample, self._sample = self._sample, None
        self.note_step(number, sample, *sample.compare())

    def note_step(self, number: int, sample: Sample, changed: int, sampled: int) -> None:
        """Add one step to the update."""
        step = {
            "optimizer": number,
            "changed": changed,
            "sampled": sampled,
            "with_grad": sum(p.grad is not None for p in sample.parameters),
            "parameters": len(sample.parameters),
        }
        self.session.updates.current.steps.append(step)
        self.session.updates.current.n["optimizer"] += 1

    def _measure_gradients(self, optimizer: Any, parameters: list[Any]) -> None:
        collected = self.session.updates.current
        looked_at = parameters if self.session.updates.index < DESCRIBED_UPDATES else self._sample.parameters
        collected.grad_dtypes.update(dtype_name(p.grad.dtype) for p in looked_at if p.grad is not None)
        sharded = next((p for p in self._sample.parameters if is_sharded(p.grad)), None)
        collected.norm_is_shard = sharded is not None or self.session.roots.is_opaque
        collected.norm_replica = 0 if sharded is None else replica(sharded.grad)
        if collected.clips:
            return
        torch = self.session.torch
        gradients = [local(p.grad) for p in parameters if p.grad is not None]
        if not gradients or any(gradient.layout is not torch.strided for gradient in gradients):
            return
        norms = torch.stack(self._norms(gradients))
        square = norms.to(torch.float64).square_().sum()
        scale = getattr(optimizer, "grad_scale", None)  # a fused kernel will unscale by itself
        collected.squares.append(square if scale is None else square / scale.to(torch.float64).square())

    def _norms(self, gradients: list[Any]) -> Any:
        torch = self.session.torch
        try:
            return torch._foreach_norm(gradients, 2.0, dtype=torch.float32)
        except TypeError:  # torch < 2.4
            return [norm.float() for norm in torch._foreach_norm(gradients, 2.0)]

    def number_of(self, optimizer: Any) -> int:
        """Number of an optimizer in the records, in order of first steps."""
        for number, reference in enumerate(self._stepped):
            if reference() is optimizer:
                return number
        self._stepped.append(weakref.ref(optimizer))
        return len(self._stepped) - 1

    def live(self) -> list[Any]:
        """Optimizers that still exist: those that stepped by number, then the others."""
        optimizers = [reference() for reference in self._stepped]
        inner = {id(unwrapped(o)) for o in optimizers if o is not None}
        known = {id(o) for o in optimizers} | inner
        for reference in self._live:
            optimizer = reference()
            if optimizer is not None and id(optimizer) not in known and hasattr(optimizer, "param_groups"):
                optimizers.append(optimizer)
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def group_of_parameter(self) -> dict[int, int]:
        """Running number of the parameter group (over all optimizers that stepped) by id of the parameter."""
        groups: dict[int, int] = {}
        number = 0
        for reference in self._stepped:
            optimizer = reference()
            for group in [] if optimizer is None else optimizer.param_groups:
                groups.update((id(parameter), number) for parameter in group["params"])
                number += 1
        return groups

    def named_parameters(self) -> list[tuple[str, Any]]:
        """Parameters by their place in an optimizer, for those that no module names."""
        named: dict[int, tuple[str, Any]] = {}
        for number, optimizer in enumerate(self.live()):
            for index, group in enumerate(optimizer.param_groups):
                for position, parameter in enumerate(group["params"]):
                    name = "optimizer%d.group%d.%d" % (number, index, position)
                    named.setdefault(id(parameter), (name, parameter))
        return list(named.values())

    def describe_early(self, updates: int) -> None:
        """Send the optimizer records after each of the first two updates; `updates` are closed."""
        if updates > DESCRIBED_UPDATES:
            return
        for number, reference in enumerate(self._stepped):
            optimizer: Optional[Any] = reference()
            if optimizer is None:
                continue
            inner = unwrapped(optimizer)
            fields = {
                "index": number,
                "class": type(inner).__name__,
                "wrapper": None if inner is optimizer else type(optimizer).__name__,
                "groups": described_groups(optimizer, self.session.torch.Tensor),
                "state_dtypes": state_dtypes(inner, self.session.torch.Tensor),
            }
            self.session.channel.send("optimizer", fields)


def _is_on_stack(identity: int, frame: Any) -> bool:
    caller = frame.f_back
    while caller is not None:
        if id(caller) == identity:
            return True
        caller = caller.f_back
    return False
