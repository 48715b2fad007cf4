"""A study on Slurm: its executor, what is refused before it begins, and the script of its trials."""

from __future__ import annotations

import tempfile
from pathlib import Path

from engine.errors import InfrastructureError, TaskFileError
from engine.journal.folder import StudyFolder
from engine.ports import JobExecutor
from engine.task.load import Task
from infrarsi_tui.streams import narrate
from slurm.batch.script import TrialJob, agent_command, trial_request, trial_script
from slurm.scheduler.capabilities import is_available
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.scheduler.submission import TestOnly, enclosing_job, test_only

_TOKEN = "0" * 32


def slurm_executor(task: Task, folder: StudyFolder) -> JobExecutor:
    """The executor of a study on Slurm: a job a trial, or one allocation that is held across trials."""
    from slurm.batch.executor import SlurmExecutor
    from slurm.held.executor import HeldExecutor
    from slurm.unattended.inside import IDLE_S, inside_commands

    settings = task.settings.slurm
    inside = inside_commands(folder.scheduler_log)
    commands = inside or SlurmCommands(folder.scheduler_log)
    source = StateSource(commands, min_poll_s=settings.min_poll_s)
    allocation = task.settings.allocation
    if inside is not None:
        return HeldExecutor(settings, allocation, folder.root, inside, source, idle_s=IDLE_S)
    if settings.mode == "held":
        return HeldExecutor(settings, allocation, folder.root, commands, source, notify=narrate)
    return SlurmExecutor(settings, allocation, folder.root, commands, source, notify=narrate)


def refuse_without_slurm(task: Task) -> None:
    """Before a study begins: Slurm must be here, and the task must ask for what can be written down.

    Raises:
        InfrastructureError: Slurm's programs are not on PATH.
        TaskFileError: [slurm] holds an option of sbatch that is not free.
    """
    if not is_available():
        raise InfrastructureError(
            "Slurm's programs are not on PATH",
            key="--executor",
            value="slurm",
            rule="sbatch and squeue can be called here",
            hint="load the site's Slurm module, work on a login node, or use --executor local",
        )
    preview(task, Path.cwd())


def nested_note() -> list[str]:
    """A sentence for somebody who starts a study from inside a job."""
    job_id = enclosing_job()
    if job_id is None:
        return []
    return [
        f"you are inside job {job_id}: trials are jobs of their own, and none of its variables reaches them; "
        "when it ends, so does this engine (`infrarsi resume` goes on)"
    ]


def preview(task: Task, study_dir: Path) -> str:
    """The script of the study's first job; only token, trial and name are made up.

    Raises:
        TaskFileError: [slurm] holds an option of sbatch that is not free.
    """
    try:
        return (
            _held_script(task, study_dir) if task.settings.slurm.mode == "held" else _script(task, study_dir)
        )
    except TaskFileError as error:
        error.file = str(task.file)
        raise


def _script(task: Task, study_dir: Path) -> str:
    from engine.trial.plan import START_TIMEOUT_S, UPDATE_TIMEOUT_S

    settings = task.settings
    updates = settings.measurement.warmup_updates + settings.measurement.measured_updates
    folder = study_dir / "trials" / "t001" / "submitit"
    job = TrialJob(
        token=_TOKEN,
        trial_id="t001",
        study=study_dir.name,
        folder=folder,
        nodes=settings.allocation.nodes,
        cpus_per_node=settings.allocation.ranks * settings.allocation.cpus_per_rank,
        time_limit_s=START_TIMEOUT_S + UPDATE_TIMEOUT_S * updates,
    )
    request = trial_request(settings.slurm, settings.allocation, job)
    return trial_script(request, folder, agent_command(folder), "call.pkl")


def _held_script(task: Task, study_dir: Path) -> str:
    from slurm.held.requesting import allocation_request, holder_script

    folder = study_dir / "held" / "1"
    settings = task.settings
    name = f"infrarsi-held-{_TOKEN[:12]}"
    return holder_script(allocation_request(settings.slurm, settings.allocation, name, folder, ()), folder)


def ask_slurm(script: str) -> TestOnly | None:
    """What `sbatch --test-only` says to a script; None where there is no Slurm."""
    if not is_available():
        return None
    with tempfile.TemporaryDirectory(prefix="infrarsi-") as folder:
        path = Path(folder) / "submission.sh"
        path.write_text(script)
        return test_only(SlurmCommands(), path)
