"""Which way of asking for GPUs this site takes: each is put to `sbatch --test-only`, nothing is submitted."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Literal

from engine.schema.task import SlurmSection
from slurm.doctor.check import Check
from slurm.doctor.partitions import Partition
from slurm.scheduler.allocation import AllocationRequest, sbatch_options, script_text
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.submission import test_only

GROUP = "cluster"

Style = Literal["gres", "gpus-per-node"]
STYLES: tuple[Style, ...] = ("gres", "gpus-per-node")
_MINUTES = 5


@dataclasses.dataclass(frozen=True)
class Trial:
    """One way of asking and Slurm's answer to it."""

    style: Style
    gpu_type: str | None
    count: int
    ok: bool
    words: str
    hint: str | None

    def __str__(self) -> str:
        kind = f"{self.gpu_type}:{self.count}" if self.gpu_type else str(self.count)
        option = f"--gres=gpu:{kind}" if self.style == "gres" else f"--gpus-per-node={kind}"
        return f"{option} {'works' if self.ok else 'is refused'}"


def try_styles(commands: SlurmCommands, partition: Partition) -> list[Trial]:
    """Ask with each style, without a type and with each type of the partition."""
    most = max(partition.gpu_types.values(), default=0)
    kinds: dict[str | None, int] = {None: most}
    kinds |= {kind: count for kind, count in partition.gpu_types.items() if kind is not None}
    with tempfile.TemporaryDirectory(prefix="infrarsi-doctor-") as folder:
        script = Path(folder) / "ask.sh"
        return [
            _try(commands, script, partition, style, kind, count)
            for style in STYLES
            for kind, count in kinds.items()
        ]


def _try(
    commands: SlurmCommands, script: Path, partition: Partition, style: Style, kind: str | None, count: int
) -> Trial:
    limit_min = _MINUTES if partition.limit_s is None else max(1, min(_MINUTES, int(partition.limit_s // 60)))
    request = AllocationRequest(
        name="infrarsi-doctor",
        nodes=1,
        gpus_per_node=count,
        cpus_per_task=1,
        time_min=limit_min,
        settings=SlurmSection(partition=partition.name, gpu_request=style, gpu_type=kind),
        output="/dev/null",
    )
    script.write_text(script_text(sbatch_options(request), ["true"]))
    answer = test_only(commands, script)
    return Trial(style, kind, count, answer.ok, " ".join(answer.text.split()), answer.hint)


def recommended(trials: list[Trial], partition: Partition) -> Trial | None:
    """The way to write into [slurm]: typed where a partition has several types, else as plain as works."""
    working = [trial for trial in trials if trial.ok]
    types = [kind for kind in partition.gpu_types if kind is not None]
    wants_type = len(partition.gpu_types) > 1 and bool(types)

    def order(trial: Trial) -> tuple[bool, int, int]:
        return ((trial.gpu_type is not None) != wants_type, -trial.count, STYLES.index(trial.style))

    return min(working, key=order, default=None)


def style_check(trials: list[Trial], best: Trial | None, partition: Partition) -> Check:
    """Whether GPUs can be asked for, and how."""
    found = f"in {partition.name}: " + ", ".join(str(trial) for trial in trials)
    if best is not None:
        return Check("gpu_request", GROUP, "ok", found)
    refused = trials[0]
    return Check(
        "gpu_request",
        GROUP,
        "fail",
        found,
        f"no way of asking for GPUs is taken; Slurm says: {refused.words}",
        refused.hint or "",
    )


def slurm_section(best: Trial | None, partition: Partition | None) -> dict[str, str]:
    """The lines of [slurm] that follow; empty where nothing was found out."""
    if best is None or partition is None:
        return {}
    section = {"partition": partition.name, "gpu_request": best.style}
    return {**section, "gpu_type": best.gpu_type} if best.gpu_type is not None else section
