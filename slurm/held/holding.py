"""One held allocation as its folder tells it: `<study>/held/<n>/`."""

from __future__ import annotations

import sys
import uuid
from pathlib import Path

from pydantic import ValidationError

from engine.durable import explain_disk_errors, write_json, write_text
from engine.schema.base import Record
from engine.schema.job import AllocationUse, JobRequest
from slurm.held.holder.ledger import LedgerReader, append
from slurm.held.holder.plan import EVENTS, HOLDER, ORDERS
from slurm.held.progress import Progress

ALLOCATION = "allocation.json"
HOLDER_LOG = "holder.log"
SCRIPT = "holder.sh"


class HoldingRecord(Record):
    """allocation.json: what was asked of Slurm, and what became of it. Times are unix seconds.

    Args:
        name: The job's name; no other job has it.
        intended_at: When sbatch was about to be called.
        gpus: GPUs (on CPUs: ranks) of the whole allocation.
        limit_s: The time limit that is asked for.
        exclude: Nodes that were not to be used.
        job_id: Slurm's id, once sbatch's answer is known.
        submitted_at: When that answer came.
        given_up: Why no trial is ordered here any more; None while some may be.
        use: What it has cost, once nothing about that changes.
    """

    name: str
    intended_at: float
    gpus: int
    limit_s: float
    exclude: tuple[str, ...] = ()
    job_id: str | None = None
    submitted_at: float | None = None
    given_up: str | None = None
    use: AllocationUse | None = None


class Holding:
    """The engine's side of an allocation's folder: it appends orders, reads events, keeps allocation.json."""

    def __init__(self, folder: Path, record: HoldingRecord) -> None:
        self.folder = folder
        self.record = record
        self.progress = Progress()
        self._events = LedgerReader(folder / EVENTS)
        self._orders = LedgerReader(folder / ORDERS)
        self._runs: dict[str, Path] = {}
        self._cancelled: set[str] = set()
        self._is_told_to_leave = False
        self.refresh()

    @classmethod
    def create(cls, folder: Path, record: HoldingRecord) -> Holding:
        """Make the folder of a new allocation, both ledgers included.

        On network disks a file that was looked for in vain stays invisible for a while.

        Raises:
            InfrastructureError: the disk refuses, or another engine makes the same folder.
        """
        with explain_disk_errors(folder):
            folder.mkdir(mode=0o700, parents=True)
            for name in (ORDERS, EVENTS):
                (folder / name).touch(mode=0o600)
        write_json(folder / ALLOCATION, record.model_dump(mode="json"))
        return cls(folder, record)

    @classmethod
    def load(cls, folder: Path) -> Holding | None:
        """An allocation of this or an earlier engine; None when its folder holds no record."""
        try:
            record = HoldingRecord.model_validate_json((folder / ALLOCATION).read_bytes())
        except (OSError, ValidationError):
            return None
        return cls(folder, record)

    @property
    def number(self) -> int:
        """Its place among the study's allocations, from 1."""
        return int(self.folder.name)

    @property
    def job_id(self) -> str | None:
        """Slurm's id, from sbatch or from the holder."""
        allocated = self.progress.allocated
        return self.record.job_id or (allocated.job_id if allocated else None)

    @property
    def was_never_queued(self) -> bool:
        """Whether its job never came to be, as far as anybody can tell."""
        return self.job_id is None and self.record.given_up is not None

    @property
    def is_closed(self) -> bool:
        """Whether no trial must be ordered here any more."""
        is_over = self.record.use is not None or self.progress.leaving is not None
        return is_over or self._is_told_to_leave or self.record.given_up is not None

    @property
    def open_tokens(self) -> list[str]:
        """Trials that were ordered here, in order, and are neither over nor have a result."""
        return [token for token, folder in self._runs.items() if self._is_open(token, folder)]

    def refresh(self) -> Progress:
        """Read what the holder has added."""
        self.progress.take(self._events.new())
        self._read_orders()
        return self.progress

    def has_order(self, token: str) -> bool:
        """Whether a trial was ordered here."""
        return token in self._runs

    def order_run(self, request: JobRequest) -> None:
        """Order a trial; once only."""
        self._order(
            "run",
            trial_id=request.trial_id,
            token=request.token,
            trial_dir=request.trial_dir,
            spec_path=request.spec_path,
            time_limit_s=request.time_limit_s,
        )

    def order_cancel(self, token: str) -> None:
        """Withdraw a trial, or have its step ended."""
        if token not in self._cancelled:
            self._order("cancel", token=token)

    def order_leave(self, reason: str) -> None:
        """Have the allocation given back after what was ordered before."""
        if not self._is_told_to_leave:
            self._order("leave", reason=reason)

    def update(self, **changes: object) -> None:
        """Change allocation.json.

        Raises:
            InfrastructureError: the disk refuses.
        """
        self.record = self.record.model_copy(update=changes)
        write_json(self.folder / ALLOCATION, self.record.model_dump(mode="json"))

    def write_plan(self, plan: dict[str, object], script: str) -> Path:
        """Write holder.json and the batch script; the script's path."""
        write_json(self.folder / HOLDER, plan)
        path = self.folder / SCRIPT
        write_text(path, script, mode=0o700)
        return path

    def _order(self, kind: str, **values: object) -> None:
        with explain_disk_errors(self.folder / ORDERS):
            append(self.folder / ORDERS, kind, **values)
        self._read_orders()

    def _is_open(self, token: str, folder: Path) -> bool:
        trial = self.progress.trial(token)
        if trial.is_over or (token in self._cancelled and not trial.started):
            return False
        return not (folder / "result.json").exists()

    def _read_orders(self) -> None:
        for order in self._orders.new():
            if order["kind"] == "run":
                self._runs[str(order["token"])] = Path(order["trial_dir"])
            elif order["kind"] == "cancel":
                self._cancelled.add(str(order["token"]))
            elif order["kind"] == "leave":
                self._is_told_to_leave = True


def new_name() -> str:
    """A job name that no other job has."""
    return f"infrarsi-held-{uuid.uuid4().hex[:12]}"


def isolated_python() -> list[str]:
    """Words of the engine's own interpreter, away from modules of the current folder and of the user."""
    return [sys.executable, "-P"]
