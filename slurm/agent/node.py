"""Which node of the trial this is, as its scheduler says."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class NodeIdentity:
    """One node of a trial. `count` is the real number of nodes, whatever the plan asks for.

    `tasks` is the number of processes of the step that the agent is one of, None outside of a step;
    `local_task` is this one's place on its node. `nodelist` is the scheduler's, not expanded.
    """

    rank: int
    count: int
    name: str
    host: str
    is_scheduled: bool = False
    tasks: int | None = None
    local_task: int = 0
    nodelist: str | None = None
    job_id: str | None = None
    step_id: str | None = None
    restarts: int = 0

    @property
    def suffix(self) -> str:
        """Tells this node's files from the head's: empty on the head."""
        return f"-{self.rank}" if self.rank else ""

    def slurm(self) -> dict[str, Any] | None:
        """The `slurm` entry of result.json."""
        if self.job_id is None:
            return None
        return {"job_id": self.job_id, "step_id": self.step_id, "restarts": self.restarts}


def identify(environ: Mapping[str, str]) -> NodeIdentity:
    """Read the node's identity from the variables of a Slurm step; without them it is node 0 of 1."""
    host = socket.gethostname()
    rank = _number(environ, "SLURM_NODEID")
    job_id = environ.get("SLURM_JOB_ID")
    if rank is None:
        return NodeIdentity(0, 1, environ.get("SLURMD_NODENAME") or host, host)
    count = _number(environ, "SLURM_STEP_NUM_NODES") or _number(environ, "SLURM_NNODES") or 1
    return NodeIdentity(
        rank=rank,
        count=max(count, rank + 1),
        name=environ.get("SLURMD_NODENAME") or host,
        host=host,
        is_scheduled=job_id is not None,
        tasks=_number(environ, "SLURM_STEP_NUM_TASKS"),
        local_task=_number(environ, "SLURM_LOCALID") or 0,
        nodelist=environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST"),
        job_id=job_id,
        step_id=environ.get("SLURM_STEP_ID") or environ.get("SLURM_STEPID"),
        restarts=_number(environ, "SLURM_RESTART_COUNT") or 0,
    )


def host_names(nodelist: str) -> list[str]:
    """The names that a node list stands for: "a[01-02]b,c" gives a01b, a02b, c."""
    names: list[str] = []
    for part in _parts(nodelist):
        before, bracket, rest = part.partition("[")
        inside, _, after = rest.partition("]")
        if not bracket:
            names.append(part)
            continue
        tails = host_names(after) or [""]
        names += [before + number + tail for number in _numbers(inside) for tail in tails]
    return names


def _parts(nodelist: str) -> list[str]:
    """Split at the commas that are not inside of brackets."""
    parts, depth = [""], 0
    for character in nodelist:
        depth += (character == "[") - (character == "]")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part for part in parts if part]


def _numbers(inside: str) -> list[str]:
    """The numbers between brackets, with their leading zeros; what is no range stays as it is."""
    numbers: list[str] = []
    for piece in inside.split(","):
        low, dash, high = piece.partition("-")
        if dash and low.isdigit() and high.isdigit():
            numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
        else:
            numbers.append(piece)
    return numbers


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "")
    return int(value) if value.isdigit() else None
