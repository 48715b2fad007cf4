"""How an engine job goes on after its time limit: Slurm starts it again, or it submits its successor."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path

from engine.errors import InfraError
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.scheduler.submission import submit
from slurm.unattended.folder import EngineFolder, job_name
from slurm.unattended.records import Submission, read_record, write_record

_FORBIDDEN = re.compile(
    r"access/permission denied|submi\w+ .{0,60}\b(?:compute|this) (?:node|host)"
    r"|login nodes? only|only .{0,40}login node",
    re.IGNORECASE | re.DOTALL,
)
_NAME_LINE = re.compile(r"^#SBATCH --(?:job-name|dependency)=.*\n", re.MULTILINE)


def submission_problem(commands: SlurmCommands, script: Path, partition: str | None) -> str | None:
    """Why this node may not submit jobs, in a sentence; None where it may, or where nobody can tell.

    Sites can refuse jobs that come from compute nodes. Other refusals are the engine's to explain: this job
    asks for no GPU, which some partitions do not allow.
    """
    words = ["sbatch", "--test-only", "--nodes=1", "--ntasks=1"]
    if partition is not None:
        words.append(f"--partition={partition}")
    result = commands.run(*words, str(script))
    if result.problem == "not found":
        return "there is no sbatch on this node"
    if result.returncode and _FORBIDDEN.search(result.stderr):
        return f"this site lets no job be submitted from a compute node: {result.stderr.strip()}"
    return None


def requeue(commands: SlurmCommands, job_id: str) -> str | None:
    """Ask Slurm to start this job again; None = it will, otherwise its words."""
    result = commands.run("scontrol", "requeue", job_id)
    if result.ok:
        return None
    return result.stderr.strip() or result.stdout.strip() or result.problem or "refused without a word"


def succeed(folder: EngineFolder, commands: SlurmCommands, source: StateSource, job_id: str) -> str:
    """Submit a successor that starts when this job has ended.

    Returns:
        Its job id.

    Raises:
        InfraError: Slurm does not take it.
    """
    last = read_record(folder.submission, Submission)
    number = 2 if last is None else last.number + 1
    name = job_name(folder.study, number)
    script = folder.root / f"engine-{number}.sh"
    script.write_text(
        with_options(folder.script.read_text(), {"job-name": name, "dependency": f"afterany:{job_id}"})
    )
    return submit_recorded(folder, commands, source, script, number)


def submit_recorded(
    folder: EngineFolder, commands: SlurmCommands, source: StateSource, script: Path, number: int
) -> str:
    """Write down the intention, submit, write down the answer; the record of before is put back on a refusal.

    Raises:
        InfraError: Slurm does not take the job, or the disk does not take the record.
    """
    before = read_record(folder.submission, Submission)
    name = job_name(folder.study, number)
    intention = Submission(number=number, name=name, intended_at=time.time())
    write_record(folder.submission, intention)
    try:
        job_id = submit(commands, source, script, name)
    except InfraError:
        if before is not None:
            write_record(folder.submission, before)
        raise
    write_record(folder.submission, intention.model_copy(update={"job_id": job_id}))
    return job_id


def with_options(script: str, options: Mapping[str, str]) -> str:
    """A batch script with other values for its name and its dependency."""
    first, _, rest = _NAME_LINE.sub("", script).partition("\n")
    lines = [f"#SBATCH --{option}={value}" for option, value in options.items()]
    return "\n".join([first, *lines, rest])


def is_preempted_for_good(commands: SlurmCommands, job_id: str, restarts: int) -> bool:
    """Whether this job is being ended to make room for another one, and will not be started again.

    While a job is being ended Slurm shows COMPLETING, whatever it will be called afterwards; a job that is
    about to be requeued has one restart more than the `restarts` with which it began.
    """
    result = commands.run("scontrol", "-o", "show", "job", job_id, timeout_s=5.0)
    if not result.ok or re.search(r"\bPreemptTime=\d", result.stdout) is None:
        return False
    counted = re.search(r"\bRestarts=(\d+)", result.stdout)
    return counted is None or int(counted.group(1)) == restarts
