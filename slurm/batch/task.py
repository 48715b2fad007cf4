"""What runs on every node of a trial's job."""

from __future__ import annotations

from slurm.agent.__main__ import main

ALREADY_RUN = 3
"""Exit code of an agent that found its trial run before: the job was started again."""


def run_agent(spec_path: str) -> None:
    """Run this node's agent.

    Raises:
        SystemExit: with the agent's own exit code, which Slurm reports; submitit turns other errors into 1.
    """
    code = main([spec_path])
    if code:
        raise SystemExit(code)
