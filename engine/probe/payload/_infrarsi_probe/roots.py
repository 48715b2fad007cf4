"""Which module is the model: signs it, perturbs it once, and describes what it is fed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe import clocks, perturb, signature
from _infrarsi_probe.inputs import Batch
from _infrarsi_probe.tensors import dtype_name

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session

AUTOCAST_DEVICES = ("cpu", "cuda")


class Roots:
    """The main root is the largest module that the script calls outermost, with gradients, for training."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.main: Any = None  # strong until the end signature: a model local to main() would be gone at exit
        self._main_numel = 0
        self._kinds: dict[int, str] = {}
        self._perturbed = False
        self.is_opaque = False  # parameters are flattened shards, see signature
        self.moved: Optional[int] = None  # elements that the perturbation moved

    def observe(self, module: Any, args: Any, kwargs: Any, function: Any = None) -> None:
        """An outermost training call begins on `module`.

        Where it is a compiled `function`, that has the arguments' names, and there may be no module at all.
        """
        session = self._session
        kind = self._kind_of(module)
        batch = Batch(session.torch.Tensor, module if function is None else function, args, kwargs)
        self._note_autocast()
        counts = session.updates.current.n
        if kind == "main" and not batch.has_activations:
            counts["forward"] += 1
            if batch.source is not None:
                session.digest.add_batch(session.updates.current, batch)
        elif kind == "other":
            counts["other"] += 1

    def sign_end(self) -> None:
        """Send the end signature and let go of the model."""
        main, self.main = self.main, None
        self._kinds.clear()
        if main is not None and self._session.settings.signature:
            self._sign("end", main)

    def _kind_of(self, module: Any) -> str:
        kind = self._kinds.get(id(module))
        if kind is None:
            kind = self._classify(module)
            self._kinds[id(module)] = kind
        return kind

    def _classify(self, module: Any) -> str:
        if module is None:
            return "main" if self.main is None else "none"
        parameters = list(module.parameters())
        if not parameters:
            return "none"
        numel = sum(int(p.numel()) for p in parameters)
        shared = self.main is not None and _shares_parameters(self.main, parameters)
        if self.main is not None and numel <= self._main_numel:
            return "main" if shared and numel == self._main_numel else "other"
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind == "none"}
        self.main, self._main_numel = module, numel
        self.is_opaque = signature.opaque_wrapper(module) is not None
        self._session.communication.adopt(module)
        if self._session.settings.signature:
            self._sign("start", module)
        self._perturb(module)
        return "main"

    def _sign(self, when: str, module: Any) -> None:
        session = self._session
        started = clocks.perf_ns()
        try:
            fields = signature.signature(session, module, when)
        except Exception as error:
            reason = "%s: %s" % (type(error).__name__, error)
            fields = {"params": [], "buffers": [], "unavailable": reason[:500]}
            session.report("signature " + when, error)
        fields.update(when=when, model=signature.class_name(module), cost_ns=clocks.perf_ns() - started)
        cuda = session.torch.cuda
        fields["device_name"] = cuda.get_device_name() if cuda.is_initialized() else None
        session.channel.send("signature", fields)

    def _perturb(self, module: Any) -> None:
        seed: Optional[int] = self._session.settings.perturb_ulp_seed
        if seed is None or self._perturbed:
            return
        self._perturbed = True
        self.moved = perturb.perturb(self._session.torch, module, seed)

    def _note_autocast(self) -> None:
        torch = self._session.torch
        for device in AUTOCAST_DEVICES:
            if torch.is_autocast_enabled(device):
                name = "%s:%s" % (device, dtype_name(torch.get_autocast_dtype(device)))
                self._session.updates.current.autocast.add(name)


def _shares_parameters(module: Any, parameters: list[Any]) -> bool:
    known = {id(p) for p in module.parameters()}
    return any(id(p) in known for p in parameters)
