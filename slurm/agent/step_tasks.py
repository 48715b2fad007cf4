"""The tasks that srun started on this node: not below the agent, so they have to show whose they are."""

from __future__ import annotations

import os
from typing import Any

from slurm.agent.procfs import is_descendant, is_same_process, owner, parents, read_comm, read_stat

_DAEMON = "slurmstepd"


class StepTasks:
    """Who may register as a rank of this node, and who has.

    A process is taken for a task of the trial's own step when all of this holds: it runs under the agent's
    user (SO_PEERCRED); its parent's name is slurmstepd, and that parent runs under root or under the user
    of the slurmstepd that the agent itself descends from; that parent started after the agent; it names a
    rank of this node that nobody has named before. No user code runs before all of them have registered,
    because each waits for the agent's word, and after that nobody can register any more.
    """

    def __init__(self, ranks: range) -> None:
        self._missing = set(ranks)
        self._roots: dict[int, int] = {}

    @property
    def complete(self) -> bool:
        """Whether every rank of the node has registered."""
        return not self._missing

    @property
    def missing(self) -> list[int]:
        """The ranks that have not registered."""
        return sorted(self._missing)

    def register(self, pid: int, uid: int, message: dict[str, Any]) -> str | None:
        """Take a task in; why not, otherwise."""
        rank = message.get("rank")
        if isinstance(rank, bool) or not isinstance(rank, int) or rank not in self._missing:
            return f"rank {str(rank)[:20]} is not one of those that are awaited: {self.missing}"
        if uid != os.getuid():
            return f"it runs under user {uid}, the agent under {os.getuid()}"
        stat, agent = read_stat(pid), read_stat(os.getpid())
        daemon = read_stat(stat.ppid) if stat else None
        if stat is None or daemon is None or agent is None:
            return "it is gone"
        if read_comm(daemon.pid) != _DAEMON or owner(daemon.pid) not in _trusted_owners():
            return f"its parent, process {daemon.pid} ({read_comm(daemon.pid)}), is no slurmstepd"
        if daemon.start_ticks < agent.start_ticks:
            return "its step is older than the agent"
        self._missing.discard(rank)
        self._roots[pid] = stat.start_ticks
        return None

    def owns(self, pid: int) -> bool:
        """Whether a process is one of the tasks, or below one."""
        return any(
            pid == root or is_descendant(pid, root)
            for root, start_ticks in self._roots.items()
            if is_same_process(root, start_ticks)
        )

    def roots(self) -> list[int]:
        """The tasks that still run."""
        return [root for root, start_ticks in self._roots.items() if is_same_process(root, start_ticks)]


def _trusted_owners() -> set[int | None]:
    own = next((pid for pid in parents(os.getpid()) if read_comm(pid) == _DAEMON), None)
    return {0} if own is None else {0, owner(own)}
