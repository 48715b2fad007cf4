"""Handing a trial to Slurm: claimed once, written down before and after the call of sbatch."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

from engine.durable import explain_disk_errors
from engine.errors import InfraError, InfrastructureError, TaskFileError
from engine.schema.job import JobRequest
from engine.schema.task import AllocationSection, SlurmSection
from slurm.batch.one_job import OneJobExecutor
from slurm.batch.script import TrialJob, job_name, trial_request
from slurm.batch.task import run_agent
from slurm.batch.whereabouts import Submission
from slurm.scheduler.capabilities import is_available
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.scheduler.submission import NoAnswerError, cancel_job
from slurm.trial_files import SUBMISSION_FILE, claim_submission

# sbatch gives "%" and "\\" in paths a meaning, and a line break would end the line of an option.
_FORBIDDEN = ("%", "\\", "\n", "\r")


class Submitter:
    """Submits the trials of one study.

    Args:
        settings: [slurm] of the task.
        allocation: [allocation] of the task.
        study: The study's name, for the jobs' comments.
        commands: Runs Slurm's programs.
        source: Looks jobs up by name.
        tell: Takes sentences for a person.
    """

    def __init__(
        self,
        settings: SlurmSection,
        allocation: AllocationSection,
        study: str,
        commands: SlurmCommands,
        source: StateSource,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._allocation = allocation
        self._study = study
        self._commands = commands
        self._source = source
        self._tell = tell

    def submit(self, request: JobRequest) -> Submission:
        """Submit a trial.

        Raises:
            TaskFileError: Slurm refuses what the task file asks for.
            InfrastructureError: submitted before, no Slurm here, Slurm does not answer, or the disk refuses.
        """
        _check(request)
        folder = claim_submission(request)
        file, intended_at = folder / SUBMISSION_FILE, time.time()
        name = job_name(request.token)
        Submission(request.token, name, intended_at).write(file)
        try:
            job_id = self._hand_over(folder, request)
        except NoAnswerError:
            raise
        except InfraError as error:
            Submission(request.token, name, intended_at, refused=error.message).write(file)
            raise
        submission = Submission(request.token, name, intended_at, job_id, time.time())
        try:
            submission.write(file)
        except InfrastructureError:
            cancel_job(self._commands, job_id, name)
            raise
        return submission

    def _hand_over(self, folder: Path, request: JobRequest) -> str:
        """Submit with the wished and without the avoided nodes where Slurm can, else on any."""
        try:
            return self._sbatch(folder, request)
        except TaskFileError:
            if not request.exclude and not request.nodelist:
                raise
            wishes = [f"without {', '.join(request.exclude)}"] if request.exclude else []
            wishes += [f"on {', '.join(request.nodelist)}"] if request.nodelist else []
            self._tell(f"{request.trial_id} cannot be run {' '.join(wishes)}: any nodes are asked for")
            return self._sbatch(folder, request.model_copy(update={"exclude": (), "nodelist": ()}))

    def _sbatch(self, folder: Path, request: JobRequest) -> str:
        job = TrialJob(
            token=request.token,
            trial_id=request.trial_id,
            study=self._study,
            folder=folder,
            nodes=request.nodes,
            cpus_per_node=request.ranks_per_node * request.cpus_per_rank,
            time_limit_s=request.time_limit_s,
            exclude=request.exclude,
            nodelist=request.nodelist,
        )
        wanted = trial_request(self._settings, self._allocation, job)
        with explain_disk_errors(folder):
            executor = OneJobExecutor(folder, wanted, self._commands, self._source)
            try:
                executor.submit(run_agent, request.spec_path)
            except OSError:
                if executor.submitted_id is None:
                    raise
        if executor.submitted_id is None:
            raise AssertionError("submitit submits what it is given")
        return executor.submitted_id


def _check(request: JobRequest) -> None:
    if not is_available() or shutil.which("srun") is None:
        raise InfrastructureError(
            "Slurm's programs are not on PATH",
            value="sbatch, squeue, srun",
            hint="load the site's Slurm module, or use --executor local",
        )
    if any(char in request.trial_dir for char in _FORBIDDEN):
        raise InfrastructureError(
            "Slurm would read this path differently",
            file=request.trial_dir,
            rule="a trial folder's path holds no %, no backslash and no line break",
            hint="choose another --out",
        )
