"""First program of a rank that srun starts: registers at its node's agent, then becomes the training.

Runs under the training's interpreter by file path (`python -I shim.py`), so it imports nothing of ours.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import socket
import sys
from typing import Any, NoReturn

VARIABLE = "INFRARSI_SHIM"
EXIT_REFUSED = 97

_SETUP_END = 'exec "$@"'


def main() -> NoReturn:
    """Register, set the rank's variables and limit, run the setup lines, become the command."""
    orders = json.loads(os.environ.pop(VARIABLE))
    node, rank, local = _place(orders)
    path = orders["nodes"][node]["socket"]
    _register(path, rank, local)
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(local),
        WORLD_SIZE=str(orders["world_size"]),
        LOCAL_WORLD_SIZE=str(orders["ranks_per_node"]),
        MASTER_ADDR=orders["master_addr"],
        MASTER_PORT=orders["master_port"],
        INFRARSI_PROBE_SOCKET=path,
    )
    _limit_memory(orders["memory_limit_bytes"])
    command = [word.replace("{node_rank}", str(node)) for word in orders["command"]]
    if orders["setup"]:
        shell = shutil.which("bash") or "/bin/sh"
        command = [shell, "-c", "\n".join([*orders["setup"], _SETUP_END]), "setup", *command]
    try:
        os.execvp(command[0], command)
    except OSError as error:
        _fail(f"cannot start {command[0]!r} in {os.getcwd()!r}: {error}")


def _place(orders: dict[str, Any]) -> tuple[int, int, int]:
    """Node rank, rank and local rank, where Slurm and the plan agree on them."""
    name = os.environ.get("SLURMD_NODENAME")
    names = [entry["name"] for entry in orders["nodes"]]
    node = names.index(name) if name in names else int(os.environ["SLURM_NODEID"])
    rank, local = int(os.environ["SLURM_PROCID"]), int(os.environ["SLURM_LOCALID"])
    tasks = int(os.environ["SLURM_NTASKS"])
    if tasks != orders["world_size"]:
        _fail(f"Slurm started {tasks} tasks, the trial has {orders['world_size']} ranks")
    if rank != node * orders["ranks_per_node"] + local:
        _fail(
            f"Slurm's task {rank} is number {local} on node {node} ({name}): not {rank} by the plan's layout"
        )
    return node, rank, local


def _register(path: str, rank: int, local: int) -> None:
    """Say who this is, and wait for the word that every rank of the node has done so."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        try:
            sock.connect(path)
            sock.sendall(json.dumps({"k": "task", "rank": rank, "local_rank": local}).encode() + b"\n")
            answer = sock.makefile("rb").readline()
        except OSError as error:
            _fail(f"the node agent cannot be reached at {path}: {error}")
    if not answer or json.loads(answer).get("k") != "go":
        _fail("the node agent did not let this rank start")


def _limit_memory(limit_bytes: int | None) -> None:
    if limit_bytes is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        soft = limit_bytes if hard == resource.RLIM_INFINITY else min(limit_bytes, hard)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _fail(why: str) -> NoReturn:
    print(f"infrarsi: {why}", file=sys.stderr, flush=True)
    sys.exit(EXIT_REFUSED)


if __name__ == "__main__":
    main()
