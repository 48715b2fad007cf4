"""Sees autocast regions and the loss scaler: compute dtypes, unscaled losses, skipped steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through
from _infrarsi_probe.tensors import dtype_name

if TYPE_CHECKING:
    from _infrarsi_probe.backward import BackwardWatch
    from _infrarsi_probe.session import Session


class AutocastWatch:
    """Replaces `autocast.__enter__`: frameworks enter it far from the model call."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self) -> None:
        """Wrap the context manager's entry."""
        session = self.session
        autocast = session.torch.amp.autocast_mode.autocast
        compiling = session.torch.compiler.is_compiling
        original = autocast.__enter__

        @passes_through
        def __enter__(context: Any) -> Any:
            if not compiling():
                self.note(context)
            return original(context)

        session.integrity.replace("autocast", autocast, "__enter__", __enter__)

    @quietly("autocast")
    def note(self, context: Any) -> None:
        """Add a region to the update if gradients are on."""
        if context._enabled and self.session.torch.is_grad_enabled() and not self.session.in_backward:
            name = "%s:%s" % (context.device, dtype_name(context.fast_dtype))
            self.session.updates.current.autocast.add(name)


class ScalerWatch:
    """Wraps `GradScaler.scale` (to report losses unscaled) and `GradScaler.step` (to see skipped steps)."""

    def __init__(self, session: Session, backward: BackwardWatch) -> None:
        self.session = session
        self._backward = backward

    def install(self) -> None:
        """Wrap both methods on the class."""
        session = self.session
        scaler_class = session.torch.amp.GradScaler
        scale_original, step_original = scaler_class.scale, scaler_class.step

        @passes_through
        def scale(scaler: Any, outputs: Any) -> Any:
            scaled = scale_original(scaler, outputs)
            self.scaled(scaler)
            return scaled

        @passes_through
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            steps = session.updates.current.n["optimizer"]
            result = step_original(scaler, optimizer, *args, **kwargs)
            self.stepped(scaler, optimizer, steps)
            return result

        session.integrity.replace("scaler_scale", scaler_class, "scale", scale)
        session.integrity.replace("scaler_step", scaler_class, "step", step)

    @quietly("loss scale")
    def scaled(self, scaler: Any) -> None:
        """The next backward starts from a scaled loss."""
        scale = getattr(scaler, "_scale", None)
        if scaler.is_enabled() and scale is not None:
            self._backward.loss_scale = scale.detach().clone()

    @quietly("scaler step")
    def stepped(self, scaler: Any, optimizer: Any, steps_before: int) -> None:
        """The scaler ran, skipped, or left it to a fused kernel to skip the step."""
        if not scaler.is_enabled():
            return
        updates = self.session.updates
        if updates.current.n["optimizer"] == steps_before:
            updates.current.n["skipped"] += 1
            self.session.stopwatch.synchronize()
            updates.mark_end()
        elif getattr(optimizer, "_step_supports_amp_scaling", False):
            found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
            updates.current.overflows.extend(value.detach().clone() for value in found.values())
