"""The batch script of one trial."""

from __future__ import annotations

import math
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

from engine.schema.task import AllocationSection, SlurmSection
from slurm.scheduler.allocation import (
    AllocationRequest,
    end_signal,
    gpus_wanted,
    sbatch_options,
    script_text,
    srun_words,
)

_STARTING_S = 120.0
"""What a job needs before its agent runs: prologs, a cold file system, our own start."""


@dataclass(frozen=True, kw_only=True)
class TrialJob:
    """One trial as a job: `folder` gets the files of submitit and Slurm, below the trial's own."""

    token: str
    trial_id: str
    study: str
    folder: Path
    nodes: int
    cpus_per_node: int
    time_limit_s: float
    exclude: tuple[str, ...] = ()
    nodelist: tuple[str, ...] = ()


def job_name(token: str) -> str:
    """The name of a trial's job; nothing else on the cluster has it."""
    return f"infrarsi-{token[:12]}"


def trial_request(settings: SlurmSection, allocation: AllocationSection, job: TrialJob) -> AllocationRequest:
    """What a trial asks for: one task a node that holds all of the node's GPUs and CPUs of the trial."""
    enough_min = math.ceil((job.time_limit_s + _STARTING_S) / 60.0)
    time_min = min(settings.time_limit_min, enough_min)
    return AllocationRequest(
        name=job_name(job.token),
        nodes=job.nodes,
        gpus_per_node=gpus_wanted(settings, allocation),
        cpus_per_task=job.cpus_per_node,
        time_min=time_min,
        exclude=job.exclude,
        nodelist=job.nodelist,
        settings=settings,
        output=f"{job.folder}/%j_0_log.out",
        error=f"{job.folder}/%j_0_log.err",
        chdir=str(job.folder.parent),
        signal=end_signal(time_min),
        comment=f"InfraRSI study {_plain(job.study)}, trial {_plain(job.trial_id)}",
    )


def agent_command(folder: Path, python: str = sys.executable) -> str:
    """The shell words of one task, as submitit has them; -P keeps modules of the current folder out."""
    return f"{shlex.quote(python)} -P -u -m submitit.core._submit {shlex.quote(str(folder))}"


def trial_script(request: AllocationRequest, folder: Path, command: str, pickle: str) -> str:
    """The script of a trial.

    Args:
        request: What is asked of Slurm.
        folder: The folder of submitit.
        command: The shell words of one task.
        pickle: The file, inside the folder, in which submitit left the call; it is renamed once the job's id
            is known, so the job helps itself when the engine died in between.
    """
    srun = shlex.join(srun_words(request, f"{folder}/%j_%t_log.out", f"{folder}/%j_%t_log.err"))
    target = '"$folder/${SLURM_JOB_ID}_submitted.pkl"'
    body = [
        f"folder={shlex.quote(str(folder))}",
        f'test -e {target} || cp "$folder/{pickle}" {target} 2>/dev/null',
        # Two variables that say the same in different words make srun refuse.
        "unset SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK",
        "export SUBMITIT_EXECUTOR=slurm",
        f"{srun} {command}",
    ]
    return script_text(sbatch_options(request), body)


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", text)[:60]
