"""Starting the task's own launcher: its command line, its port, its limits, its session."""

from __future__ import annotations

import ctypes
import random
import resource
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from slurm.agent.plan import LaunchPlan

_LOOPBACK = "127.0.0.1"
_PORT_RANGE_FILE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 15000
_PORT_ATTEMPTS = 200
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class LaunchError(Exception):
    """The launcher could not be started; says nothing about the candidate's code."""


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it: none escapes. False where unsupported."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


def free_port() -> int:
    """A port that can be bound now, below the range from which the kernel takes ports by itself.

    Raises:
        LaunchError: none was free.
    """
    try:
        ceiling = int(_PORT_RANGE_FILE.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        ceiling = 32768
    generator = random.SystemRandom()
    for _ in range(_PORT_ATTEMPTS):
        port = generator.randrange(min(_LOWEST_PORT, ceiling - 1000), ceiling)
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            try:
                probe.bind((_LOOPBACK, port))
            except OSError:
                continue
            return port
    raise LaunchError(f"no free port below {ceiling} was found in {_PORT_ATTEMPTS} attempts")


def launcher_command(plan: LaunchPlan, master_port: int) -> list[str]:
    """The argument list of the launcher on a single node.

    A "command" that begins with a Python file is run with the training interpreter, anything else as it is.

    Raises:
        LaunchError: this launcher or layout needs a scheduler.
    """
    if plan.nodes != 1:
        raise LaunchError(f"nodes: {plan.nodes}; rule: without a scheduler a trial runs on one node")
    filled = {"{node_rank}": "0", "{master_addr}": _LOOPBACK, "{master_port}": str(master_port)}
    command = []
    for word in plan.command:
        for placeholder, value in filled.items():
            word = word.replace(placeholder, value)
        command.append(word)
    if not command:
        raise LaunchError("command: is empty; rule: a script or a program with its arguments")
    if plan.launcher == "command":
        return [plan.python, *command] if command[0].endswith(".py") else command
    if plan.launcher != "torchrun":
        raise LaunchError(f'launcher: "{plan.launcher}" needs a Slurm job; hint: use "torchrun" or "command"')
    return [
        plan.python,
        "-m",
        "torch.distributed.run",
        "--nnodes=1",
        f"--nproc-per-node={plan.ranks_per_node}",
        "--node-rank=0",
        f"--master-addr={_LOOPBACK}",
        f"--master-port={master_port}",
        "--max-restarts=0",
        *command,
    ]


def with_setup(setup: list[str], command: list[str]) -> list[str]:
    """Run the task's shell lines first, in the shell that then becomes the command."""
    if not setup:
        return command
    shell = shutil.which("bash") or "/bin/sh"
    return [shell, "-c", "\n".join([*setup, 'exec "$@"']), "setup", *command]


def _prepare_child(memory_limit_bytes: int | None) -> Callable[[], None]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # The launcher hears of the agent's death even when that was a SIGKILL, and ends its ranks.
        libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        if memory_limit_bytes is not None:
            _, hard = resource.getrlimit(resource.RLIMIT_DATA)
            soft = memory_limit_bytes if hard == resource.RLIM_INFINITY else min(memory_limit_bytes, hard)
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))

    return prepare


def start_launcher(
    plan: LaunchPlan, command: list[str], environment: Mapping[str, str], log: BinaryIO
) -> subprocess.Popen[bytes]:
    """Start the launcher in its own session; to be called from the main thread, whose end it hears of.

    Raises:
        LaunchError: the program, the working folder or an argument is unusable.
    """
    try:
        return subprocess.Popen(
            command,
            cwd=plan.workdir,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=_prepare_child(plan.memory_limit_bytes if plan.device == "cpu" else None),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise LaunchError(f"cannot start {command[0]!r} in {plan.workdir!r}: {error}") from error
