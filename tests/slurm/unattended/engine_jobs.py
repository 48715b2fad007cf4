"""A driver on stand-ins for Slurm's programs, and engines that are one line of shell."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from slurm.unattended.folder import EngineFolder, job_name
from slurm.unattended.records import EngineOrder, EngineState, Submission, read_record, write_record

ROOT = Path(__file__).resolve().parents[3]
JOB = "71"


def programs(folder: Path, **scripts: str) -> Path:
    """A folder of shell scripts to put on PATH; each first notes its words in `<name>.calls`."""
    folder.mkdir(exist_ok=True)
    for name, body in scripts.items():
        path = folder / name
        path.write_text(f'#!/bin/bash\necho "$@" >> {folder}/{name}.calls\n{body}\n')
        path.chmod(0o755)
    return folder


def calls(folder: Path, name: str) -> list[str]:
    """What a program of `programs` was called with."""
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def quiet_slurm(folder: Path, **scripts: str) -> Path:
    """Programs of a Slurm that takes everything and knows one running job."""
    usual = {
        "sbatch": 'case "$*" in *--test-only*) exit 0;; esac; echo 72',
        "scontrol": 'case "$1" in requeue) exit 0;; esac; echo "JobId=71 JobState=RUNNING Requeue=1"',
        "squeue": "exit 0",
        "sacct": 'echo "Slurm accounting storage is disabled" >&2; exit 1',
        "scancel": "exit 0",
        "sinfo": "echo 'gpu*|infinite'",
    }
    return programs(folder, **{**usual, **scripts})


def prepare(tmp_path: Path, run: str, resume: str = "exit 0", *, inside: bool = False) -> EngineFolder:
    """The folder of an engine whose `run` and `resume` are lines of shell."""
    folder = EngineFolder.of(tmp_path / "study")
    folder.root.mkdir(parents=True, exist_ok=True)
    order = EngineOrder(
        study=str(folder.study),
        run=("bash", "-c", run),
        resume=("bash", "-c", resume),
        cwd=str(tmp_path),
        inside=inside,
    )
    write_record(folder.order, order)
    folder.script.write_text(f"#!/bin/bash\n#SBATCH --job-name={job_name(folder.study, 1)}\nexec true\n")
    write_record(
        folder.submission,
        Submission(number=1, name=job_name(folder.study, 1), intended_at=1.0, job_id=JOB),
    )
    return folder


def begin_study(folder: EngineFolder) -> None:
    """A folder that looks begun to the driver: it has no journal that could be looked into."""
    folder.study.mkdir(exist_ok=True)


def start_driver(
    folder: EngineFolder, bin_folder: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """The driver as its job would run it."""
    variables = {
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NAME": job_name(folder.study, 1),
        **(environment or {}),
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "slurm.unattended.driver", str(folder.root)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def drive(folder: EngineFolder, bin_folder: Path, environment: Mapping[str, str] | None = None) -> int:
    """Run the driver to its end; its exit code."""
    process = start_driver(folder, bin_folder, environment)
    process.communicate(timeout=60)
    return process.returncode


def state_of(folder: EngineFolder) -> EngineState:
    """What the driver says of itself."""
    state = read_record(folder.state, EngineState)
    assert state is not None
    return state
