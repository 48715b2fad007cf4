"""Counts the label tokens that enter a cross entropy, with the ignore index that is really used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

_IGNORE_POSITION = 2  # after input, target: weight, size_average, ignore_index


class LossWatch:
    """Replaces `torch.nn.functional.cross_entropy`; inside compiled code it is silent."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self) -> None:
        """Wrap the function; nn.CrossEntropyLoss calls it too."""
        session = self.session
        functional = session.torch.nn.functional
        compiling = session.torch.compiler.is_compiling
        grad_enabled = session.torch.is_grad_enabled
        original = functional.cross_entropy

        @passes_through
        def cross_entropy(input: Any, target: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A002
            if compiling() or session.in_backward or not (grad_enabled() or session.training_forward):
                return original(input, target, *args, **kwargs)
            self.count(target, args, kwargs)
            return original(input, target, *args, **kwargs)

        session.integrity.replace("cross_entropy", functional, "cross_entropy", cross_entropy)

    @quietly("cross_entropy")
    def count(self, target: Any, args: Any, kwargs: Any) -> None:
        """Add one call to the update."""
        if target.is_floating_point():
            return
        position = _IGNORE_POSITION
        ignored = kwargs.get("ignore_index", args[position] if len(args) > position else -100)
        self.session.digest.add_cross_entropy(self.session.updates.current, target, ignored)
