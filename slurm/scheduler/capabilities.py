"""What this cluster can do, asked once."""

from __future__ import annotations

import dataclasses
import re
import shutil

from slurm.scheduler.command import SlurmCommands, caller_environment

_SETTING = re.compile(r"^\s*([A-Za-z_]+)\s*=\s*(.*?)\s*$")
_VERSION = re.compile(r"(\d+)\.(\d+)")
_SECONDS = re.compile(r"(\d+)")


@dataclasses.dataclass(frozen=True, slots=True)
class Capabilities:
    """Facts about a cluster; None = the controller did not say.

    Attributes:
        version: Slurm's release, as (22, 5).
        cluster: The cluster's name.
        accounting: Whether slurmdbd keeps records and sacct is there to read them.
        min_job_age_s: How long the controller remembers an ended job.
        kill_wait_s: Seconds between SIGTERM and SIGKILL at a time limit or a cancel.
        requeue_by_default: Whether jobs that do not say otherwise are requeued after a node failure.
        select_type: How nodes are shared, for example select/cons_tres.
        gres_types: Names of generic resources, for example ("gpu",).
        task_plugin: How processes are bound and confined.
        preempt_mode: What happens to preempted jobs.
        problem: Why nothing is known, in a line.
    """

    version: tuple[int, int] | None = None
    cluster: str | None = None
    accounting: bool = False
    min_job_age_s: int | None = None
    kill_wait_s: int | None = None
    requeue_by_default: bool | None = None
    select_type: str | None = None
    gres_types: tuple[str, ...] = ()
    task_plugin: str | None = None
    preempt_mode: str | None = None
    problem: str | None = None


def is_available() -> bool:
    """Whether jobs can be submitted and followed from this machine: sbatch and squeue are on PATH."""
    return all(shutil.which(program) is not None for program in ("sbatch", "squeue"))


def probe(commands: SlurmCommands) -> Capabilities:
    """Read the cluster's configuration with one call to the controller."""
    result = commands.run("scontrol", "show", "config")
    if not result.ok:
        return Capabilities(problem=result.complaint)
    return parse_config(result.stdout, has_sacct=_has_sacct())


def parse_config(text: str, *, has_sacct: bool) -> Capabilities:
    """Understand `scontrol show config`; keys that are missing or new do no harm."""
    said: dict[str, str] = {}
    for line in text.splitlines():
        match = _SETTING.match(line)
        if match:
            said.setdefault(match.group(1).lower(), match.group(2))
    version = _VERSION.search(said.get("slurm_version", ""))
    requeue = _number(said.get("jobrequeue"))
    gres_types = _word(said.get("grestypes"))
    return Capabilities(
        version=(int(version.group(1)), int(version.group(2))) if version else None,
        cluster=_word(said.get("clustername")),
        accounting=has_sacct and "slurmdbd" in said.get("accountingstoragetype", ""),
        min_job_age_s=_number(said.get("minjobage")),
        kill_wait_s=_number(said.get("killwait")),
        requeue_by_default=None if requeue is None else requeue > 0,
        select_type=_word(said.get("selecttype")),
        gres_types=tuple(gres_types.split(",")) if gres_types else (),
        task_plugin=_word(said.get("taskplugin")),
        preempt_mode=_word(said.get("preemptmode")),
        problem=None if said else "scontrol: the configuration is not understood",
    )


def _has_sacct() -> bool:
    return shutil.which("sacct", path=caller_environment().get("PATH")) is not None


def _word(text: str | None) -> str | None:
    return text if text and text.lower() not in ("(null)", "none", "n/a") else None


def _number(text: str | None) -> int | None:
    match = _SECONDS.match(text or "")
    return int(match.group(1)) if match else None
