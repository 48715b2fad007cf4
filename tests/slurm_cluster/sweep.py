"""Ends every process of a cluster: its daemons, their step daemons and whatever the jobs left behind.

Run as a program it is the guard of one cluster: it sweeps when its parent is gone, however that ended.
"""

import contextlib
import os
import shutil
import signal
import sys
import time

TYPE_CHECKING = False  # typing is slow to import
if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "INFRARSI_TEST_CLUSTER"
"""Variable that all daemons carry; step daemons inherit it, jobs carry Slurm's own SLURM_CLUSTER_NAME."""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except OSError:
        return b""


def _parents() -> "dict[int, int]":
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 1 and fields[0] not in (b"Z", b"X"):
                found[int(name)] = int(fields[1])
    return found


def _belongs_to_node(pid: int, variables: "list[bytes]", node: str) -> bool:
    """Jobs name their node; a step daemon has overwritten that variable, but writes to the node's log."""
    if f"SLURMD_NODENAME={node}".encode() in variables:
        return True
    try:
        names = os.listdir(f"/proc/{pid}/fd")
        return any(os.readlink(f"/proc/{pid}/fd/{name}").endswith(f"/slurmd.{node}.log") for name in names)
    except OSError:
        return False


def processes_of(cluster: str, node: "str | None" = None) -> "list[int]":
    """Living processes of a cluster, known by their environment, and all of their descendants.

    With `node`, the daemons and jobs of that node only.
    """
    marks = [f"{MARK}={cluster}".encode(), f"SLURM_CLUSTER_NAME={cluster}".encode()]
    parents = _parents()
    found = set()
    for pid in parents:
        variables = _read(f"/proc/{pid}/environ").split(b"\0")
        if any(mark in variables for mark in marks) and (
            node is None or _belongs_to_node(pid, variables, node)
        ):
            found.add(pid)
    children = {}  # type: dict[int, list[int]]
    for pid, parent in parents.items():
        children.setdefault(parent, []).append(pid)
    waiting = list(found)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    found -= {os.getpid(), os.getppid()}
    return sorted(found)


def sweep(cluster: str) -> "list[int]":
    """Kill everything of the cluster; the processes that would not go."""
    return kill(lambda: processes_of(cluster))


def kill(processes: "Callable[[], list[int]]", limit_s: float = 10.0) -> "list[int]":
    """Kill until nothing is found any more; the processes that would not go."""
    deadline = time.monotonic() + limit_s
    while True:
        left = processes()
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _guard(cluster: str, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.buffer.read():  # the pipe's other end is closed by the parent's end, whatever that was
        return  # a byte was written first: the parent has stopped the cluster itself
    sweep(cluster)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    _guard(sys.argv[1], sys.argv[2])
