"""A study with held allocations on a real Slurm, without the rest of the engine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.schema.job import JobHandle, JobState, JobStatus
from engine.schema.plan import LaunchPlan
from engine.schema.task import AllocationSection, SlurmSection
from slurm.held.executor import HeldExecutor
from slurm.held.holder.ledger import Entry, LedgerReader
from slurm.held.holder.plan import EVENTS
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from tests.slurm.trial_folder import make_trial, read_json, request_of, wait_for
from tests.slurm_cluster.cluster import SlurmCluster

LIMIT_S = 60.0
_OVER = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"})
_POLL_S = 1.0


class HeldStudy:
    """Makes executors and trials of one study folder."""

    def __init__(
        self, folder: Path, cluster: SlurmCluster, *, nodes: int = 1, idle_s: float = 60.0, **settings: Any
    ) -> None:
        self.folder = folder
        self.cluster = cluster
        self._allocation = AllocationSection(nodes=nodes, gpus_per_node=1, device="cpu")
        self._settings = SlurmSection(**{"gpu_request": "gres", "min_poll_s": _POLL_S, **settings})
        self._idle_s = idle_s
        self._executors: list[HeldExecutor] = []
        folder.mkdir(parents=True, exist_ok=True)

    def executor(self) -> HeldExecutor:
        """An executor as a new engine process would make it."""
        commands = SlurmCommands(self.folder / "slurm_commands.jsonl")
        made = HeldExecutor(
            self._settings,
            self._allocation,
            self.folder,
            commands,
            StateSource(commands, min_poll_s=_POLL_S),
            idle_s=self._idle_s,
        )
        self._executors.append(made)
        return made

    def trial(self, name: str, mode: str = "normal", **overrides: Any) -> LaunchPlan:
        """A trial of the study, its token is its name."""
        nodes = self._allocation.nodes
        values: dict[str, Any] = {"token": f"{name}-{self.folder.parent.name}", "nodes": nodes, **overrides}
        return make_trial(self.folder / "trials" / name, mode, **values)

    def submit(self, executor: HeldExecutor, plan: LaunchPlan, **changes: Any) -> JobHandle:
        """Hand a trial over."""
        return executor.submit(request_of(plan).model_copy(update=changes))

    def run(self, executor: HeldExecutor, plan: LaunchPlan, **changes: Any) -> JobStatus:
        """Hand a trial over and follow it to its end."""
        return self.wait_for_end(executor, self.submit(executor, plan, **changes))

    def wait_for_end(self, executor: HeldExecutor, handle: JobHandle, limit_s: float = LIMIT_S) -> JobStatus:
        """Poll until the state is final."""
        return self.wait_for(executor, handle, lambda status: status.state.is_terminal, limit_s)

    def wait_for_state(self, executor: HeldExecutor, handle: JobHandle, state: JobState) -> JobStatus:
        """Poll until the state is this one."""
        return self.wait_for(executor, handle, lambda status: status.state is state, LIMIT_S)

    def wait_for(
        self,
        executor: HeldExecutor,
        handle: JobHandle,
        wanted: Callable[[JobStatus], bool],
        limit_s: float = LIMIT_S,
    ) -> JobStatus:
        """Poll until a status is as wanted; with everything that is known if none is."""
        seen: list[JobStatus] = []

        def arrived() -> JobStatus | None:
            seen[:] = [executor.poll(handle)]
            return seen[0] if wanted(seen[0]) else None

        try:
            status: JobStatus = wait_for(arrived, f"{handle.trial_dir}", limit_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {seen}; {self.all_events()}; {self.cluster.jobs()}") from None
        return status

    def events(self, number: int = 1) -> list[Entry]:
        """What the holder of an allocation said."""
        return LedgerReader(self.folder / "held" / str(number) / EVENTS).new()

    def all_events(self) -> dict[str, list[Entry]]:
        """What all holders said."""
        return {
            path.name: LedgerReader(path / EVENTS).new() for path in sorted((self.folder / "held").iterdir())
        }

    def event(self, kind: str, number: int = 1) -> Entry:
        """The first event of a kind; waits for it."""
        found: Entry = wait_for(
            lambda: next((entry for entry in self.events(number) if entry["kind"] == kind), None),
            f"{kind} in allocation {number}",
            LIMIT_S,
        )
        return found

    def wait_for_ends(self, *trial_ids: str, number: int = 1) -> list[Entry]:
        """Wait until an allocation has said how these trials, in this order and no others, ended."""

        def ends() -> list[Entry]:
            return [event for event in self.events(number) if event["kind"] == "ended"]

        wait_for(lambda: len(ends()) >= len(trial_ids), f"ends of {trial_ids}")
        assert [event["trial_id"] for event in ends()] == list(trial_ids)
        return ends()

    def jobs(self) -> list[dict[str, str]]:
        """Allocations of this study that Slurm has not ended, the oldest first."""
        names = [read_json(path)["name"] for path in (self.folder / "held").glob("*/allocation.json")]
        ours = [job for job in self.cluster.jobs() if job["name"] in names and job["state"] not in _OVER]
        return sorted(ours, key=lambda job: int(job["id"]))

    def close(self) -> None:
        """Give back what is left."""
        for executor in self._executors[-1:]:
            executor.release()


def gap_s(first: LaunchPlan, second: LaunchPlan) -> float:
    """Seconds from the end of a trial to the start of the next one, by their agents' clocks."""
    ended = read_json(Path(first.trial_dir) / "result.json")["finished_at"]
    return float(read_json(Path(second.trial_dir) / "job.json")["started_at"]) - float(ended)
