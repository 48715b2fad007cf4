"""submitit's local executor, started so that its jobs outlive the engine and its terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import submitit
from submitit.local.local import LocalJob

from slurm.agent.environment import scrubbed

AGENT_MARK = "INFRARSI_AGENT_TRIAL"
"""Variable of the agent's own environment that names its trial folder; it is not handed to the training."""

CONTROLLER_LOG = "controller.log"


class DetachedLocalExecutor(submitit.LocalExecutor):
    """A LocalExecutor whose controller has its own session, a quiet terminal and no keys in its environment.

    The stock controller shares the caller's process group (Ctrl-C ends it), writes over the caller's screen,
    imports whatever lies in the current directory and hides all GPUs unless some are asked for.

    Args:
        folder: Where submitit keeps its files; must exist.
        trial_dir: The trial that the job runs.
        time_limit_s: After this submitit signals SIGUSR2, a minute later it kills.
    """

    signal_delay_s = 60

    def __init__(self, folder: Path, trial_dir: str, time_limit_s: float) -> None:
        # Isolated from the current directory; not by PYTHONSAFEPATH, which the training would inherit.
        super().__init__(folder, python=f"{shlex.quote(sys.executable)} -P")
        self._trial_dir = trial_dir
        self._limit_s = int(time_limit_s) + self.signal_delay_s

    def _submit_command(self, command: str) -> LocalJob[Any]:
        environment = scrubbed(os.environ)
        environment.update(
            SUBMITIT_EXECUTOR="local",
            SUBMITIT_LOCAL_COMMAND=command,
            SUBMITIT_LOCAL_NTASKS="1",
            SUBMITIT_LOCAL_NODEID="0",
            SUBMITIT_LOCAL_JOB_NUM_NODES="1",
            SUBMITIT_LOCAL_TIMEOUT_S=str(self._limit_s),
            SUBMITIT_LOCAL_SIGNAL_DELAY_S=str(self.signal_delay_s),
            SUBMITIT_LOCAL_WITH_SHELL="",
            SUBMITIT_STDERR_TO_STDOUT="",
        )
        environment[AGENT_MARK] = self._trial_dir
        with (Path(self.folder) / CONTROLLER_LOG).open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "submitit.local._local", str(self.folder)],
                env=environment,
                cwd=self._trial_dir,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        # Reaped as soon as it ends: a zombie would look like a process that still runs.
        threading.Thread(target=process.wait, name=f"reap-{process.pid}", daemon=True).start()
        return LocalJob(folder=self.folder, job_id=str(process.pid), process=process, tasks=[0])
