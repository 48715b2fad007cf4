"""Keeps the norms that gradient clipping computes anyway."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class ClipWatch:
    """Wraps the functions of `torch.nn.utils` that clip by norm."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self) -> None:
        """Wrap clip_grad_norm_ and, where torch has it, clip_grads_with_norm_."""
        session = self.session
        utils = session.torch.nn.utils
        compiling = session.torch.compiler.is_compiling
        by_norm = utils.clip_grad_norm_

        @passes_through
        def clip_grad_norm_(
            parameters: Any, max_norm: Any, norm_type: Any = 2.0, *args: Any, **kwargs: Any
        ) -> Any:
            norm = by_norm(parameters, max_norm, norm_type, *args, **kwargs)
            if not compiling():
                self.note(norm, max_norm, norm_type)
            return norm

        session.integrity.replace("clip_grad_norm", utils, "clip_grad_norm_", clip_grad_norm_)
        utils.clip_grad.clip_grad_norm_ = clip_grad_norm_
        with_norm = getattr(utils, "clip_grads_with_norm_", None)
        if with_norm is None:
            return

        @passes_through
        def clip_grads_with_norm_(
            parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
        ) -> Any:
            if not compiling():
                self.note(total_norm, max_norm, 2.0)
            return with_norm(parameters, max_norm, total_norm, *args, **kwargs)

        utils.clip_grads_with_norm_ = clip_grads_with_norm_

    @quietly("clip")
    def note(self, norm: Any, max_norm: Any, norm_type: Any) -> None:
        """Add one clipping; a distributed norm may be reduced already, or hold a shard's part."""
        partial = any(type(p).__name__ != "Replicate" for p in getattr(norm, "placements", ()))
        norm = norm.detach().clone() if hasattr(norm, "detach") else norm
        maximum = max_norm.detach().clone() if hasattr(max_norm, "detach") else max_norm
        self.session.updates.current.clips.append((norm, maximum, float(norm_type), partial))
