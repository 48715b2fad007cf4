"""Stage 5: apply the verified winner: a branch, one commit per patch and one for the configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import shlex
import shutil
import tempfile
from pathlib import Path

from engine.errors import UsageError
from engine.journal.folder import StudyFolder
from engine.journal.state import StudyState
from engine.journal.summary import verified_verdict
from engine.schema.study import Deployed, FinalistVerdict, Stage, StageEntered
from engine.stages.context import StudyContext
from engine.stages.repository import Repository, commit_all, git
from engine.task.bindings.write import write_values
from engine.task.load import Task
from engine.trial.file_tree import remove_tree
from engine.trial.patching import apply_patch
from engine.trial.snapshot import Snapshot

LAUNCH_FILE = "infrarsi-launch.sh"


@dataclasses.dataclass(frozen=True)
class Deployment:
    """What a deployment did, or with `dry_run` would do."""

    target: str
    branch: str
    commits: tuple[str, ...]
    diff: str
    rollback: tuple[str, ...]
    dry_run: bool


def run_deployment(study: StudyContext) -> None:
    """Deploy where the study was told to; without a target or a verified winner there is nothing to do."""
    target = study.created.options.deploy_to
    if target is None or study.state.deployed is not None or verified_verdict(study.state) is None:
        return
    study.session.record(StageEntered(stage=Stage.DEPLOYMENT))
    folder, task, state = study.session.folder, study.task, study.state
    done = _deployed_before(folder, task, state, Path(target))
    if done is None:
        made = deploy(folder, task, state, Path(target), dry_run=False)
        done = Deployed(target=made.target, branch=made.branch, commits=made.commits)
    study.session.record(done)


def deploy(folder: StudyFolder, task: Task, state: StudyState, target: Path, *, dry_run: bool) -> Deployment:
    """Apply the winner to a clean, undiverged working tree; a target that does not exist is made.

    Raises:
        UsageError: nothing is verified, or the target is dirty or has diverged.
        InfrastructureError: git refused.
    """
    verdict = verified_verdict(state)
    if verdict is None:
        raise UsageError(
            "the study has no verified winner to deploy",
            key="STUDY",
            value=str(folder.root),
            hint="`infrarsi status` shows where the study stands",
        )
    snapshot = Snapshot.load(folder.snapshot)
    if target.exists():
        return _deploy_to(Repository.at(target), snapshot, folder, task, verdict, dry_run)
    with tempfile.TemporaryDirectory(prefix="infrarsi-deploy-") as scratch:
        place = Path(scratch) if dry_run else target.parent
        place.mkdir(parents=True, exist_ok=True)
        repository = _make_repository(snapshot, place / f".{target.name}.partial")
        if not dry_run:
            repository.folder.rename(target)
            repository = Repository.at(target)
        done = _deploy_to(repository, snapshot, folder, task, verdict, dry_run)
        return dataclasses.replace(done, target=str(target), rollback=() if dry_run else done.rollback)


def _make_repository(snapshot: Snapshot, folder: Path) -> Repository:
    """A repository of the project as it was measured; what an interrupted attempt left is replaced."""
    remove_tree(folder)
    shutil.copytree(snapshot.files, folder, symlinks=True)
    return Repository.create(folder)


def _deploy_to(
    repository: Repository,
    snapshot: Snapshot,
    folder: StudyFolder,
    task: Task,
    verdict: FinalistVerdict,
    dry_run: bool,
) -> Deployment:
    _refuse_dirty(repository)
    _refuse_diverged(repository, snapshot)
    branch = _branch_name(task, folder)
    if repository.has_branch(branch):
        raise UsageError(
            f"the branch {branch} exists already",
            file=str(repository.folder),
            hint=f"`git branch -D {branch}` first",
        )
    return _commit_winner(folder, task, verdict, repository, branch, dry_run)


def _deployed_before(folder: StudyFolder, task: Task, state: StudyState, target: Path) -> Deployed | None:
    """What an engine that died before it could record its deployment left behind.

    The study's own branch counts only when its files are exactly the winner on top of where it begins.
    """
    verdict, branch = verified_verdict(state), _branch_name(task, folder)
    if verdict is None or not target.exists():
        return None
    repository = Repository.at(target)
    if not repository.has_branch(branch):
        return None
    for count in (len(verdict.candidate.patches) + 1, len(verdict.candidate.patches)):
        commits = repository.last_commits(branch, count)
        if not commits:
            continue
        with repository.scratch_tree(f"{commits[0]}~1") as project:
            rebuilt = _commit_in(project, folder, task, verdict)
            same = len(rebuilt) == count and repository.same_files(rebuilt[-1], branch)
        if same:
            git(repository.folder, "switch", "--quiet", branch)
            return Deployed(target=str(repository.folder), branch=branch, commits=commits)
    return None


def _commit_in(project: Path, folder: StudyFolder, task: Task, verdict: FinalistVerdict) -> tuple[str, ...]:
    """Commit the winner in a working tree: one commit per patch, one for the configuration."""
    commits = []
    for patch in verdict.candidate.patches:
        failure = apply_patch(project, folder.patch(patch.sha256).read_text())
        if failure is not None:
            raise UsageError(f"patch {patch.name} does not apply: {failure.reason}", file=str(project))
        commits.append(commit_all(project, f"Apply patch {patch.name}"))
    _write_configuration(task, verdict, project)
    commits.append(commit_all(project, _message(verdict)))
    return tuple(commit for commit in commits if commit)


def _commit_winner(
    folder: StudyFolder,
    task: Task,
    verdict: FinalistVerdict,
    repository: Repository,
    branch: str,
    dry_run: bool,
) -> Deployment:
    way_back = repository.way_back()
    with repository.scratch_tree() as project:
        base = git(project, "rev-parse", "HEAD").strip()
        commits = _commit_in(project, folder, task, verdict)
        diff = git(project, "diff", base, "HEAD") if commits else ""
        if not dry_run and commits:
            git(project, "branch", branch, "HEAD")
    if not dry_run and commits:
        git(repository.folder, "switch", "--quiet", branch)
    place = shlex.quote(str(repository.folder))
    return Deployment(
        target=str(repository.folder),
        branch=branch,
        commits=commits,
        diff=diff,
        rollback=(f"git -C {place} switch {way_back}", f"git -C {place} branch -D {branch}"),
        dry_run=dry_run,
    )


def _write_configuration(task: Task, verdict: FinalistVerdict, project: Path) -> None:
    """Write the winner through the bindings; flags and variables go into a file beside the configuration."""
    command, space = list(task.settings.task.command), task.space
    written = write_values(space, verdict.candidate.configuration, project, command)
    if written == write_values(space, space.baseline(), None, command):
        return
    settings = task.settings.task
    lines = ["# How the verified configuration is started.", *settings.setup]
    lines += [f"unset {name}" for name in written.unset]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in sorted(written.env.items())]
    lines.append(f"# {settings.launcher}: " + shlex.join(written.command))
    (project / LAUNCH_FILE).write_text("\n".join(lines) + "\n")


def _message(verdict: FinalistVerdict) -> str:
    low, high = verdict.speedup_ci or (0.0, 0.0)
    lines = ["Use the verified faster configuration", ""]
    lines.append(
        f"Speed-up {verdict.speedup:.3f}x, 99 % interval [{low:.3f}, {high:.3f}], measured by infrarsi."
    )
    lines.append("")
    lines += [f"{name} = {value}" for name, value in sorted(verdict.candidate.configuration.items())]
    return "\n".join(lines)


def _branch_name(task: Task, folder: StudyFolder) -> str:
    slug = "".join(char if char.isalnum() else "-" for char in task.settings.task.name).strip("-").lower()
    return f"infrarsi/{slug}-{hashlib.sha256(folder.root.name.encode()).hexdigest()[:6]}"


def _refuse_dirty(repository: Repository) -> None:
    dirty = repository.dirty_files()
    if dirty:
        raise UsageError(
            f"the target has uncommitted changes: {', '.join(dirty[:5])}",
            file=str(repository.folder),
            hint="commit or stash them, then deploy again",
        )


def _refuse_diverged(repository: Repository, snapshot: Snapshot) -> None:
    diverged = snapshot.differences(repository.folder)
    if diverged:
        raise UsageError(
            f"the target is not the project that was measured: {', '.join(diverged[:5])} differ",
            file=str(repository.folder),
            hint="check out the measured commit, or run a new study on the project as it is now",
        )
