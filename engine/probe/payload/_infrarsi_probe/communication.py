"""Communication time: the data-parallel reducer's own log, and collectives that are called from Python."""

from __future__ import annotations

import functools
import sys
import weakref
from typing import TYPE_CHECKING, Any, Optional

from _infrarsi_probe import clocks
from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session
    from _infrarsi_probe.updates import Accumulator

COLLECTIVES = (
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "irecv",
    "isend",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "_all_gather_base",
    "_reduce_scatter_base",
)
BARRIERS = ("barrier", "monitored_barrier", "destroy_process_group")


class CommunicationWatch:
    """No collective is ever started here: other ranks may be elsewhere."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._ddp: Optional[weakref.ref[Any]] = None
        self._iteration: Optional[int] = None
        self._open = 0

    def install(self) -> None:
        """Wrap the collectives of torch.distributed and the wait for asynchronous ones."""
        torch = self.session.torch
        if not torch.distributed.is_available():
            return
        c10d = sys.modules["torch.distributed.distributed_c10d"]
        for name in (*COLLECTIVES, "destroy_process_group"):
            original = getattr(c10d, name, None)
            if original is None:
                continue
            wrapper = self._timed(original, name in BARRIERS)
            setattr(c10d, name, wrapper)
            if getattr(torch.distributed, name, None) is original:
                setattr(torch.distributed, name, wrapper)
        work = c10d.Work
        work.wait = self._timed(work.wait, False)

    def adopt(self, module: Any) -> None:
        """Look for DistributedDataParallel in the model and let it time every iteration."""
        self._ddp = None
        distributed = self.session.torch.nn.parallel.DistributedDataParallel
        for inner in module.modules():
            if isinstance(inner, distributed):
                self._ddp = weakref.ref(inner)
                inner._set_ddp_runtime_logging_sample_rate(1)
                break

    def exposed(self, collected: Accumulator) -> tuple[Optional[int], Optional[str]]:
        """Nanoseconds of communication that computation did not hide, and where the number comes from.

        It includes waiting for slower ranks, and lies inside the other phases: never add it to them.
        """
        session = self.session
        if session.settings.world == 1:
            return 0, "python"
        on_device = bool(collected.device_spans)
        from_python = (
            None if on_device or not collected.communication_calls else collected.ns["communication"]
        )
        logged = self._reducer_log()
        if logged is not None:
            return logged + (from_python or 0), "ddp_logger"
        if self._ddp is not None and self._ddp() is not None:
            return None, None  # its traffic is invisible from Python
        return from_python, None if from_python is None else "python"

    def _reducer_log(self) -> Optional[int]:
        ddp = None if self._ddp is None else self._ddp()
        if ddp is None:
            return None
        ddp.logger.set_runtime_stats_and_log()
        numbers = ddp.logger._get_ddp_logging_data().ints_map
        iteration = numbers.get("iteration")
        communication = numbers.get("backward_comm_time", 0)
        if communication <= 0 or iteration == self._iteration:
            return None
        self._iteration = iteration
        return int(communication - numbers.get("backward_compute_comm_overlap_time", 0))

    def _timed(self, original: Any, is_event: bool) -> Any:
        compiling = self.session.torch.compiler.is_compiling

        @passes_through
        @functools.wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if compiling() or not self.session.active:
                return original(*args, **kwargs)
            if is_event:
                self.barrier()
            started = clocks.perf_ns()
            self._open += 1
            try:
                return original(*args, **kwargs)
            finally:
                self._open -= 1
                if self._open == 0:
                    collected = self.session.updates.current
                    collected.ns["communication"] += clocks.perf_ns() - started
                    collected.communication_calls += 1

        return collective

    @quietly("barrier")
    def barrier(self) -> None:
        """Ranks meet outside of the model: the update is over, and a finished rank must not wait here."""
        session = self.session
        if not session.busy[0] and session.optimizers.depth == 0:
            session.event()
