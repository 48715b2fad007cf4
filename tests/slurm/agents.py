"""Agents as processes of their own, on one node or pretending to be several."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.schema.plan import LaunchPlan
from slurm.agent.listener import remove_socket_folders
from tests.slurm.trial_folder import no_process_left, read_json

_PATCHED = "import sys; from slurm.agent import follow, lead, result; "
_MAIN = "from slurm.agent.__main__ import main; sys.exit(main(sys.argv[1:]))"


def step_environment(node: int, nodes: int, **others: str) -> dict[str, str]:
    """What Slurm sets in a task of a step with one task on each node; the names do not resolve."""
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "3",
        "SLURM_NODEID": str(node),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_STEP_NUM_TASKS": str(nodes),
        "SLURM_STEP_NODELIST": f"fake[0-{nodes - 1}].invalid",
        "SLURMD_NODENAME": f"fake{node}.invalid",
        **others,
    }


class Agent:
    """A started agent; `result()` waits for its end.

    Args:
        plan: The trial.
        environ: Variables besides the caller's.
        patch: Statements run before, to shorten times: `follow.FIND_HEAD_S = 1.0`.
    """

    def __init__(self, plan: LaunchPlan, environ: dict[str, str], patch: str = "") -> None:
        self.plan = plan
        self.folder = Path(plan.trial_dir)
        self.log_path = self.folder / f"agent{environ.get('SLURM_NODEID', '')}.log"
        self.log = self.log_path.open("ab")
        program = ["-c", f"{_PATCHED}{patch}; {_MAIN}"] if patch else ["-m", "slurm.agent"]
        self.process = subprocess.Popen(
            [sys.executable, "-P", *program, str(self.folder / "spec.json")],
            env={**os.environ, **environ},
            cwd=Path(__file__).parents[2],
            stdout=self.log,
            stderr=subprocess.STDOUT,
        )

    def wait(self, limit_s: float = 30.0) -> int:
        """Its exit code."""
        return self.process.wait(limit_s)

    def words(self) -> str:
        """What it printed."""
        return self.log_path.read_text()

    def result(self) -> dict[str, Any]:
        """The content of result.json; nothing of the trial may be left by then."""
        assert self.wait() == 0, self.words()
        assert no_process_left(self.plan)
        result: dict[str, Any] = read_json(self.folder / "result.json")
        return result

    def close(self) -> None:
        """End it if it still runs."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(30)
        self.log.close()
        remove_socket_folders(self.plan.trial_dir)
