"""Partitions: nodes, GPUs by type, limits and states, as sinfo tells them."""

from __future__ import annotations

import dataclasses
import re

from slurm.doctor.check import Check
from slurm.scheduler import fields
from slurm.scheduler.command import SlurmCommands

GROUP = "cluster"
SINFO = ("sinfo", "-h", "-o", "%P|%a|%l|%D|%T|%c|%m|%G")

_GRES = re.compile(r"gpu:(?:([^:,()]+):)?(\d+)(?:\([^)]*\))?")
_ABLE = ("idle", "mixed", "allocated", "completing", "planned")


@dataclasses.dataclass(frozen=True)
class NodeGroup:
    """Nodes of a partition that are alike; GPUs by type (None = untyped), memory in MiB."""

    nodes: int
    state: str
    cpus: int
    memory_mib: int
    gpus: dict[str | None, int]

    @property
    def is_able(self) -> bool:
        """Whether jobs can run there, now or later."""
        return self.state.startswith(_ABLE) and not self.state.endswith("*")


@dataclasses.dataclass(frozen=True)
class Partition:
    """A partition; `limit_s` None = unlimited."""

    name: str
    is_default: bool
    is_up: bool
    limit_s: float | None
    groups: tuple[NodeGroup, ...]

    @property
    def gpu_types(self) -> dict[str | None, int]:
        """GPU type → most of them on one node."""
        most: dict[str | None, int] = {}
        for group in self.groups:
            for kind, count in group.gpus.items():
                most[kind] = max(most.get(kind, 0), count)
        return most

    def nodes(self, *, able: bool = False) -> int:
        """Number of nodes, or of those that take jobs."""
        return sum(group.nodes for group in self.groups if group.is_able or not able)


def read_partitions(commands: SlurmCommands) -> tuple[list[Partition], str | None]:
    """All partitions, or why they are not known."""
    result = commands.run(*SINFO)
    if not result.ok:
        return [], result.complaint
    return parse_sinfo(result.stdout), None


def parse_sinfo(text: str) -> list[Partition]:
    """The answer to SINFO; lines that are not understood are left out."""
    found: dict[str, Partition] = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 7)
        if len(parts) < 8 or not parts[3].isdigit():
            continue
        name = parts[0].rstrip("*")
        group = NodeGroup(
            int(parts[3]), parts[4].lower(), _number(parts[5]), _number(parts[6]), parse_gpus(parts[7])
        )
        before = found.get(name)
        found[name] = Partition(
            name,
            parts[0].endswith("*"),
            parts[1].lower() == "up",
            fields.seconds(parts[2]),
            (*(before.groups if before else ()), group),
        )
    return list(found.values())


def parse_gpus(gres: str) -> dict[str | None, int]:
    """GPUs by type in a text such as `gpu:h100:8(S:0-1),nvme:2`; type None = untyped."""
    gpus: dict[str | None, int] = {}
    for kind, count in _GRES.findall(gres):
        gpus[kind or None] = gpus.get(kind or None, 0) + int(count)
    return gpus


def chosen(partitions: list[Partition], wanted: str | None) -> Partition | None:
    """The wanted partition, or the default one if it has GPUs, or any other that has."""
    if wanted is not None:
        return next((partition for partition in partitions if partition.name == wanted), None)
    usable = [partition for partition in partitions if partition.is_up and partition.gpu_types]
    ordered = sorted(usable, key=lambda partition: not partition.is_default)
    return ordered[0] if ordered else next((one for one in partitions if one.is_default), None)


def partitions_check(partitions: list[Partition], wanted: str | None, problem: str | None) -> Check:
    """What there is to compute on."""
    if problem is not None:
        return Check(
            "partitions",
            GROUP,
            "fail",
            problem,
            "nobody knows where jobs could run",
            "`sinfo`, `scontrol ping`",
        )
    found = "; ".join(sentence(partition) for partition in partitions) or "none"
    if wanted is not None and chosen(partitions, wanted) is None:
        return Check(
            "partitions",
            GROUP,
            "fail",
            f"no partition {wanted}; there are: {found}",
            "",
            "correct --partition",
        )
    if not any(partition.nodes(able=True) and partition.is_up for partition in partitions):
        return Check("partitions", GROUP, "fail", found, "no node takes jobs", "`sinfo -R` says why")
    partition = chosen(partitions, wanted)
    if partition is None or not partition.gpu_types:
        return Check(
            "partitions", GROUP, "warn", found, "no GPUs are told of there", "name one with --partition"
        )
    if not partition.nodes(able=True):
        return Check(
            "partitions", GROUP, "warn", found, f"no node of {partition.name} takes jobs now", "`sinfo -R`"
        )
    return Check("partitions", GROUP, "ok", found)


def sentence(partition: Partition) -> str:
    """One partition in words."""
    able, nodes = partition.nodes(able=True), partition.nodes()
    parts = [f"{nodes} node{'s' * (nodes != 1)}" + ("" if able == nodes else f" ({able} usable)")]
    gpus = [f"{kind}:{count}" if kind else str(count) for kind, count in partition.gpu_types.items()]
    parts.append(f"GPUs {' or '.join(gpus)}" if gpus else "no GPUs")
    parts.append("no limit" if partition.limit_s is None else f"at most {partition.limit_s / 3600:g} h")
    states = sorted({group.state for group in partition.groups if group.nodes})
    parts.append("/".join(states))
    mark = " (default)" if partition.is_default else ""
    return f"{partition.name}{mark}: {', '.join(parts)}" + ("" if partition.is_up else ", NOT up")


def _number(text: str) -> int:
    match = re.match(r"\d+", text)
    return int(match.group()) if match else 0
