"""From a proposed trial to a launch plan: workspace, patches, configuration, command, environment, limits."""

from __future__ import annotations

import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from engine.durable import explain_disk_errors, write_json
from engine.errors import StudyBusyError
from engine.journal.folder import StudyFolder
from engine.journal.state import TrialState
from engine.probe.payload_files import copy_payload
from engine.schema.diagnosis import Diagnosis
from engine.schema.plan import LaunchPlan, ProbePlan
from engine.schema.trial import Attribution, Candidate, EvidenceLine, FailureKind, PatchRef, TrialKind
from engine.task.bindings.write import Applied, write_values
from engine.task.load import Task
from engine.task.placeholders import substitute
from engine.trial.patching import PatchFailure, parse_patch
from engine.trial.scope import check_patch_scope
from engine.trial.snapshot import Snapshot
from engine.trial.workspace import prepare_workspace
from engine.units import BYTES_PER_GIB

START_TIMEOUT_S = 600.0
"""Imports, a cold compile cache and a full file system fit in; a rank that says nothing for longer hangs."""
UPDATE_TIMEOUT_S = 300.0
SLOWEST_UPDATE = 30.0
"""An update that takes this many times the baseline's is a hang."""


@dataclass(frozen=True)
class RefusedTrial:
    """A candidate that is not run: a patch does not apply, or leaves the scope."""

    attribution: Attribution | None = None
    violations: tuple[str, ...] = ()


def prepare_trial(
    task: Task, folder: StudyFolder, trial: TrialState, nonce: str, diagnosis: Diagnosis | None
) -> LaunchPlan | RefusedTrial:
    """Build the trial folder from nothing; whatever an interrupted attempt left there is removed first.

    Returns:
        The plan of a trial that is ready to be submitted, or why no job is needed.

    Raises:
        StudyBusyError: the trial was claimed for submission: its folder belongs to a job.
        DiskFullError, InfrastructureError: the folder cannot be written.
    """
    trial_dir = folder.trial(trial.trial_id)
    if (trial_dir / "claim").exists():
        raise claimed_by_another(trial_dir)
    with explain_disk_errors(trial_dir):
        if trial_dir.exists():
            shutil.rmtree(trial_dir)
        trial_dir.mkdir(mode=0o700)
        (trial_dir / "output").mkdir(mode=0o700)
        folder.compile_cache.mkdir(mode=0o700, exist_ok=True)
    snapshot = Snapshot.load(folder.snapshot)
    workspace = prepare_workspace(snapshot, trial_dir / "work", task.settings.scope, task.space.bound_files())
    for patch in trial.proposed.candidate.patches:
        failure = workspace.apply(folder.patch(patch.sha256).read_text())
        if failure is not None:
            return RefusedTrial(attribution=_patch_attribution(patch, failure))
    applied = write_values(
        task.space,
        trial.proposed.candidate.configuration,
        workspace.root,
        list(task.settings.task.command),
    )
    with explain_disk_errors(trial_dir / "probe"):
        copy_payload(trial_dir / "probe")
    violations = workspace.seal()
    if violations:
        return RefusedTrial(violations=violations)
    plan = _launch_plan(task, folder, trial, nonce, diagnosis, applied)
    write_json(trial_dir / "spec.json", plan.model_dump(mode="json"))
    return plan


def claimed_by_another(trial_dir: Path) -> StudyBusyError:
    """The error of a trial whose folder another engine claimed."""
    return StudyBusyError(
        "another engine submitted this trial",
        file=str(trial_dir),
        hint="`infrarsi status` shows who works on the study; if nobody does, remove the trial's folder",
    )


def scope_violations(task: Task, folder: StudyFolder, candidate: Candidate) -> list[str]:
    """What the patches of a candidate touch against the scope; a malformed patch touches nothing."""
    paths: list[str] = []
    for reference in candidate.patches:
        patch = parse_patch(folder.patch(reference.sha256).read_text())
        paths += [] if isinstance(patch, PatchFailure) else patch.paths
    scope = task.settings.scope
    found = check_patch_scope(paths, scope.editable, scope.locked, task.space.bound_files())
    return [str(violation) for violation in found]


def read_plan(trial_dir: Path) -> LaunchPlan:
    """The plan of a prepared trial."""
    return LaunchPlan.model_validate_json((trial_dir / "spec.json").read_text())


def _launch_plan(
    task: Task,
    folder: StudyFolder,
    trial: TrialState,
    nonce: str,
    diagnosis: Diagnosis | None,
    applied: Applied,
) -> LaunchPlan:
    settings = task.settings
    allocation = settings.allocation
    trial_dir = folder.trial(trial.trial_id)
    proposed = trial.proposed
    limit = allocation.memory_limit_gib
    update_timeout = UPDATE_TIMEOUT_S
    if diagnosis is not None:
        update_timeout = max(UPDATE_TIMEOUT_S, SLOWEST_UPDATE * diagnosis.step_time_s)
    return LaunchPlan(
        trial_id=trial.trial_id,
        token=secrets.token_hex(16),
        trial_dir=str(trial_dir),
        workdir=str(trial_dir / "work"),
        output_dir=str(trial_dir / "output"),
        probe_dir=str(trial_dir / "probe"),
        python=task.python,
        launcher=settings.task.launcher,
        command=fill_placeholders(applied.command, task, trial_dir / "output"),
        setup=list(settings.task.setup),
        env={**_side_effects(folder, trial_dir), **applied.env},
        unset=list(applied.unset),
        nodes=allocation.nodes,
        ranks_per_node=allocation.ranks,
        cpus_per_rank=allocation.cpus_per_rank,
        device=allocation.device,
        memory_limit_bytes=None if limit is None else int(limit * BYTES_PER_GIB),
        total_updates=proposed.total_updates,
        measured_updates=proposed.measured_updates,
        probe=ProbePlan(
            nonce=nonce,
            perturb_ulp_seed=1 if proposed.kind is TrialKind.PERTURBATION else None,
        ),
        start_timeout_s=START_TIMEOUT_S,
        update_timeout_s=update_timeout,
        total_timeout_s=START_TIMEOUT_S + update_timeout * proposed.total_updates,
    )


def fill_placeholders(command: list[str], task: Task, output: Path) -> list[str]:
    """Fill what is known before the job runs; {node_rank}, {master_addr}, {master_port} are the agent's."""
    allocation = task.settings.allocation
    values = {
        "nnodes": allocation.nodes,
        "nproc": allocation.ranks,
        "world_size": allocation.world_size,
        "output_dir": output,
    }
    return [substitute(word, values) for word in command]


def _side_effects(folder: StudyFolder, trial_dir: Path) -> dict[str, str]:
    """Trackers offline, caches inside the study: a trial pushes nothing and resumes from nothing."""
    output = str(trial_dir / "output")
    return {
        "TORCHINDUCTOR_CACHE_DIR": str(folder.compile_cache / "inductor"),
        "TRITON_CACHE_DIR": str(folder.compile_cache / "triton"),
        "WANDB_MODE": "offline",
        "WANDB_DIR": output,
        "MLFLOW_TRACKING_URI": f"file:{output}/mlruns",
        "COMET_MODE": "disabled",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _patch_attribution(patch: PatchRef, failure: PatchFailure) -> Attribution:
    is_ours = failure.kind == "tool"
    return Attribution(
        kind=FailureKind.INFRA if is_ours else FailureKind.PATCH_ERROR,
        blame_candidate=not is_ours,
        cause=f"patch {patch.name} does not apply: {failure.reason}",
        evidence=tuple(EvidenceLine(line=None, text=line) for line in failure.reason.splitlines()[:5]),
        implicated=(patch.name,),
    )
