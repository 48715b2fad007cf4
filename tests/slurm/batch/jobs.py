"""Trials for a real cluster: executors, requests and handles of the tests in this folder."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from engine.schema.job import JobHandle, JobRequest
from engine.schema.plan import LaunchPlan
from engine.schema.task import AllocationSection, SlurmSection
from slurm.batch.executor import SlurmExecutor
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from tests.slurm.trial_folder import make_trial, request_of


def slurm_executor(
    study_dir: Path, *, timeout_s: float = 20.0, gpus: int = 1, notify: Any = None, **settings: Any
) -> SlurmExecutor:
    """An executor as a new engine process would make it, with short pauses."""
    section = SlurmSection.model_validate(
        {"mem": "1000", "min_poll_s": 1.0, "gpu_request": "gres", **settings}
    )
    commands = SlurmCommands(study_dir / "scheduler.jsonl", timeout_s=timeout_s)
    source = StateSource(commands, min_poll_s=section.min_poll_s)
    allocation = AllocationSection(device="cpu", gpus_per_node=gpus)
    return SlurmExecutor(
        section, allocation, study_dir, commands, source, notify=notify, grace_s=2.0, stuck_s=3.0
    )


def fresh_trial(folder: Path, mode: str, **overrides: Any) -> LaunchPlan:
    """A trial folder with a token of its own: jobs are told apart by it."""
    return make_trial(folder, mode, token=secrets.token_hex(16), **overrides)


def fresh_request(folder: Path, mode: str, **overrides: Any) -> JobRequest:
    """The request of such a trial."""
    return request_of(fresh_trial(folder, mode, **overrides))


def unrecorded(request: JobRequest) -> JobHandle:
    """The handle of an engine that did not live to record the job's id."""
    return JobHandle(executor="slurm", job_id="unrecorded", trial_dir=request.trial_dir, token=request.token)
