"""Stage 1: lock the scope: a private study folder with the frozen task and a snapshot of the project."""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from engine.durable import write_text
from engine.journal.folder import StudyFolder
from engine.journal.session import StudySession
from engine.schema.study import Stage, StageEntered, StudyCreated, StudyOptions
from engine.task.freeze import freeze_task
from engine.task.load import Task, load_task
from engine.trial.snapshot import take_snapshot

SNAPSHOT_PROJECT = Path("snapshot") / "files"
"""The project of the frozen task file, relative to it."""


def lock_task(task: Task, folder: StudyFolder) -> tuple[Task, str]:
    """Copy task and project into the study.

    Returns:
        The task as the study uses it from now on (its project is the snapshot), and the snapshot's digest.
    """
    snapshot = take_snapshot(task.project, folder.snapshot, data=task.settings.task.data)
    write_text(folder.task_file, freeze_task(task, SNAPSHOT_PROJECT))
    return load_task(folder.task_file), snapshot.digest


def record_creation(
    session: StudySession, task: Task, snapshot_digest: str, options: StudyOptions, version: str
) -> None:
    """Write the study's first event."""
    text = session.folder.task_file.read_bytes()
    session.record(
        StudyCreated(
            task_name=task.settings.task.name,
            task_sha256=hashlib.sha256(text).hexdigest(),
            snapshot_sha256=snapshot_digest,
            project=str(task.project),
            nonce=secrets.token_hex(16),
            options=options,
            product_version=version,
        )
    )
    allocation = task.settings.allocation
    session.record(
        StageEntered(
            stage=Stage.INITIALIZATION,
            note=(
                f"{task.settings.task.name}: {len(task.space.parameters)} parameters, "
                f"{allocation.world_size} ranks on {allocation.nodes} node(s), {allocation.device}"
            ),
        )
    )
