"""Times how long the training waits for `torch.utils.data.DataLoader`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from _infrarsi_probe import clocks
from _infrarsi_probe.session import quietly
from _infrarsi_probe.shield import passes_through

if TYPE_CHECKING:
    from _infrarsi_probe.session import Session


class DataWatch:
    """Replaces `__next__` of the base class of all data loader iterators."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def install(self) -> None:
        """Wrap the method; loaders of other libraries stay invisible."""
        import torch.utils.data.dataloader as dataloader

        session = self.session
        iterator = dataloader._BaseDataLoaderIter
        original = iterator.__next__

        @passes_through
        def __next__(loader: Any) -> Any:
            if not session.in_training_thread():
                return original(loader)
            self.enter()
            started = clocks.perf_ns()
            try:
                return original(loader)
            except StopIteration:
                raise
            except Exception as error:
                session.exceptions.note("data", error)
                raise
            finally:
                self.leave(clocks.perf_ns() - started)

        session.integrity.replace("data_loader", iterator, "__next__", __next__)

    @quietly("data")
    def enter(self) -> None:
        """A batch is wanted: the previous update is over."""
        self.session.event()

    @quietly("data")
    def leave(self, elapsed_ns: int) -> None:
        """The batch is there."""
        self.session.saw_data_loader = True
        self.session.updates.current.ns["data"] += elapsed_ns
        self.session.updates.current.n["data"] += 1
