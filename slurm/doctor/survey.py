"""All checks together; each stands for itself and none can hang the others."""

from __future__ import annotations

import dataclasses
import json
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurm.doctor.check import ASK_A_NODE, Check, check_of
from slurm.doctor.cluster import (
    DEFAULT_POLL_S,
    commands_check,
    controller_check,
    enclosing_job_check,
    settings_checks,
    settings_of,
)
from slurm.doctor.on_node import WAIT_S, node_checks
from slurm.doctor.partitions import chosen, partitions_check, read_partitions
from slurm.doctor.request_style import recommended, slurm_section, style_check, try_styles
from slurm.scheduler.capabilities import probe
from slurm.scheduler.command import SlurmCommands

_HERE_S = 150.0


@dataclass(frozen=True)
class Survey:
    """What was found; `slurm_section` = the lines for [slurm] in the task file."""

    checks: tuple[Check, ...]
    slurm_section: dict[str, str]

    @property
    def failed(self) -> bool:
        """Whether something will not work."""
        return any(check.status == "fail" for check in self.checks)


def survey(
    study_dir: Path,
    partition: str | None,
    *,
    internet: bool = False,
    on_node: bool = False,
    wait_s: float = WAIT_S,
    tell: Callable[[str], None] = lambda _words: None,
    commands: SlurmCommands | None = None,
) -> Survey:
    """Look at the cluster, this machine, the study's disk and, if wanted, a node.

    Args:
        study_dir: Where studies will lie; it need not exist.
        partition: The partition to look at; None = the default one.
        internet: Try to reach the internet.
        on_node: Submit a short job that looks at a node.
        wait_s: Seconds that this job may take.
        tell: Gets a line now and then.
        commands: Runs programs, Slurm's and ours.
    """
    commands = commands or SlurmCommands()
    first = commands_check()
    checks, section = [first], dict[str, str]()
    has_slurm = first.status == "ok"
    if has_slurm:
        more, section = cluster_checks(commands, partition)
        checks += more
    elif first.status == "skipped":
        checks.append(enclosing_job_check())
    checks += here_checks(commands, study_dir, on_cluster=has_slurm, internet=internet)
    if on_node and not has_slurm:
        checks.append(Check("node/job", "node", "skipped", "no Slurm, no nodes"))
    elif on_node:
        seen = node_checks(commands, study_dir, partition, internet=internet, wait_s=wait_s, tell=tell)
        checks = [*settled(checks, seen), *seen]
    return Survey(tuple(checks), section)


def settled(checks: list[Check], seen: list[Check]) -> list[Check]:
    """The checks of this machine without the doubts that a node's answer has ended."""
    if not any(check.name == "node/delay" and check.status in ("ok", "warn") for check in seen):
        return checks
    return [
        dataclasses.replace(check, status="ok", meaning="a node uses it too", hint="")
        if check.status == "warn" and check.hint.startswith(ASK_A_NODE)
        else check
        for check in checks
    ]


def cluster_checks(commands: SlurmCommands, partition: str | None) -> tuple[list[Check], dict[str, str]]:
    """Controller, settings, partitions and how GPUs are asked for; and the lines of [slurm]."""
    known = probe(commands)
    checks = [controller_check(commands, known)]
    if known.problem is not None:
        return checks, {}
    checks += settings_checks(known, settings_of(commands), DEFAULT_POLL_S)
    partitions, problem = read_partitions(commands)
    checks.append(partitions_check(partitions, partition, problem))
    place = chosen(partitions, partition)
    if place is None or not place.gpu_types:
        checks.append(Check("gpu_request", "cluster", "skipped", "no GPUs to ask for"))
        return [*checks, _pyxis(commands)], {}
    trials = try_styles(commands, place)
    best = recommended(trials, place)
    checks += [style_check(trials, best, place), _pyxis(commands)]
    return checks, slurm_section(best, place)


def here_checks(commands: SlurmCommands, study_dir: Path, *, on_cluster: bool, internet: bool) -> list[Check]:
    """The checks of this machine and disk, in a process of their own: a dead disk must not take us along."""
    with tempfile.TemporaryDirectory(prefix="infrarsi-doctor-") as folder:
        report = Path(folder) / "report.json"
        words = [sys.executable, "-P", "-m", "slurm.doctor.node_report", str(study_dir), str(report)]
        words += ["--cluster"] * on_cluster + ["--internet"] * internet
        result = commands.run(*words, timeout_s=_HERE_S)
        try:
            return [check_of(value) for value in json.loads(report.read_bytes())["checks"]]
        except (OSError, ValueError, KeyError, TypeError):
            found = f"the checks of {study_dir} gave no answer ({result.complaint})"
            meaning = "the disk may hang"
            return [
                Check("file_system", "study folder", "fail", found, meaning, "choose another --study-dir")
            ]


def _pyxis(commands: SlurmCommands) -> Check:
    result = commands.run("srun", "--help")
    if "--container-image" in result.stdout:
        return Check("pyxis", "cluster", "ok", "srun starts containers (--container-image)")
    return Check(
        "pyxis", "cluster", "skipped", "srun has no --container-image", "needed only for jobs in containers"
    )
