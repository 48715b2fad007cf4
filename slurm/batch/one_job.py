"""submitit's Slurm executor with our script, our environment and our way to call sbatch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import submitit
from submitit.slurm.slurm import SlurmJob

from engine.durable import write_text
from slurm.batch.script import agent_command, trial_script
from slurm.scheduler.allocation import AllocationRequest
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from slurm.scheduler.submission import submit

SCRIPT = "submission.sh"


class OneJobExecutor(submitit.SlurmExecutor):
    """Submits one call as one job.

    The stock executor sends keys and the caller's job variables along, asks for a wckey, signals short jobs
    at their start, and takes a lost answer of sbatch for a refusal. Its jobs' states are never asked for:
    without accounting they are wrong.

    Args:
        folder: Where submitit keeps its files; must exist.
        request: What is asked of Slurm.
        commands: Runs sbatch.
        source: Looks a job up whose submission got no answer.
    """

    def __init__(
        self, folder: Path, request: AllocationRequest, commands: SlurmCommands, source: StateSource
    ) -> None:
        super().__init__(folder)
        self.parameters = {
            "nodes": request.nodes,
            "ntasks_per_node": request.tasks_per_node,
            "time": request.time_min,
        }
        self.submitted_id: str | None = None
        """Set as soon as Slurm has the job, whatever fails afterwards."""
        self._request = request
        self._commands = commands
        self._source = source

    @property
    def _submitit_command_str(self) -> str:
        return agent_command(Path(self.folder))

    def _make_submission_file_text(self, command: str, uid: str) -> str:
        pickles = sorted(path.name for path in Path(self.folder).glob("*.pkl"))
        return trial_script(self._request, Path(self.folder), command, pickles[0])

    def _submit_command(self, command: str) -> SlurmJob[Any]:
        script = Path(self.folder) / SCRIPT
        write_text(script, self._make_submission_file_text(command, self._request.name))
        self.submitted_id = submit(self._commands, self._source, script, self._request.name)
        tasks = list(range(self._num_tasks()))
        return SlurmJob(folder=self.folder, job_id=self.submitted_id, tasks=tasks)
