"""Times the phases of an update: host clock on CPU, CUDA events in the stream once CUDA is in use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe import clocks

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session
    from _infrarsi_probe.updates import Accumulator


class Stopwatch:
    """Keeps its own references to the CUDA functions, taken before user code could replace them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        cuda = session.torch.cuda
        self._in_use = cuda.is_initialized
        self._event = getattr(cuda, "Event", None)
        self._synchronize = getattr(session.torch._C, "_cuda_synchronize", None)

    def start(self) -> tuple[int, Any]:
        """A mark in time, for `stop`."""
        return clocks.perf_ns(), self._record_event()

    def stop(self, phase: str, mark: tuple[int, Any], nested: bool = False) -> int:
        """Add the time since `mark` to a phase; returns host nanoseconds."""
        elapsed = clocks.perf_ns() - mark[0]
        if mark[1] is None:
            self._session.updates.current.ns[phase] += elapsed
        else:
            self._session.updates.current.device_spans.append((phase, mark[1], self._record_event(), nested))
        return elapsed

    def synchronize(self) -> None:
        """Wait for the device, where there is one in use: an update has ended only when its work has."""
        if self._synchronize is not None and self._in_use():
            self._synchronize()

    def resolve(self, collected: Accumulator) -> None:
        """Read the events of an update that has been synchronised."""
        for phase, start, end, nested in collected.device_spans:
            elapsed = int(start.elapsed_time(end) * 1e6)
            collected.ns[phase] += elapsed
            if nested:
                collected.ns["optimizer"] -= elapsed

    def _record_event(self) -> Optional[Any]:
        if self._event is None or not self._in_use() or self._session.is_capturing():
            return None
        event = self._event(enable_timing=True)
        event.record()
        return event
