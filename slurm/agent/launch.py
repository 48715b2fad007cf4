"""Starting the task's own launcher: its command line, its limits, its session."""

from __future__ import annotations

import ctypes
import resource
import shutil
import signal
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import BinaryIO

from slurm.agent.plan import LaunchPlan
from slurm.agent.ports import LOOPBACK

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class LaunchError(Exception):
    """The launcher could not be started; says nothing about the candidate's code."""


def adopt_orphans() -> bool:
    """Make this process the parent of every orphan below it: none escapes. False where unsupported."""
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0)


@dataclass(frozen=True)
class Meeting:
    """Where the ranks of a trial meet: what `MASTER_ADDR` and `MASTER_PORT` mean, seen from one node."""

    node_rank: int = 0
    address: str = LOOPBACK
    port: int = 0

    def placeholders(self) -> dict[str, str]:
        """What the command of this node is filled with."""
        return {
            "node_rank": str(self.node_rank),
            "master_addr": self.address,
            "master_port": str(self.port),
        }


def filled(words: list[str], placeholders: Mapping[str, str]) -> list[str]:
    """Words with `{name}` filled; other braces stay."""
    result = []
    for word in words:
        for name, value in placeholders.items():
            word = word.replace("{" + name + "}", value)
        result.append(word)
    return result


def program(plan: LaunchPlan) -> list[str]:
    """The task's command as something to execute: a Python file is given to the training interpreter.

    Raises:
        LaunchError: there is no command.
    """
    if not plan.command:
        raise LaunchError("command: is empty; rule: a script or a program with its arguments")
    return [plan.python, *plan.command] if plan.command[0].endswith(".py") else list(plan.command)


def launcher_command(plan: LaunchPlan, meeting: Meeting) -> list[str]:
    """The argument list of the launcher of one node, for the launchers that run once a node.

    Raises:
        LaunchError: there is no command, or this launcher needs a scheduler.
    """
    whole = program(plan)
    if plan.launcher == "torchrun":
        whole = [
            plan.python,
            "-m",
            "torch.distributed.run",
            f"--nnodes={plan.nodes}",
            f"--nproc-per-node={plan.ranks_per_node}",
            "--node-rank={node_rank}",
            "--master-addr={master_addr}",
            "--master-port={master_port}",
            "--max-restarts=0",
            *plan.command,
        ]
    elif plan.launcher != "command":
        raise LaunchError(f'launcher: "{plan.launcher}" needs a Slurm job; hint: use "torchrun" or "command"')
    return filled(whole, meeting.placeholders())


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
    plan: LaunchPlan,
    command: list[str],
    environment: Mapping[str, str],
    log: BinaryIO,
    memory_limit_bytes: int | None,
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
            preexec_fn=_prepare_child(memory_limit_bytes),
        )
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise LaunchError(f"cannot start {command[0]!r} in {plan.workdir!r}: {error}") from error
