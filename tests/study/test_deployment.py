"""Applying the winner to real git repositories: a branch and commits, or nothing at all."""

from __future__ import annotations

import hashlib
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from engine.durable import write_text
from engine.errors import UsageError
from engine.journal.folder import StudyFolder
from engine.journal.session import StudySession
from engine.journal.summary import verified_verdict
from engine.schema.study import Deployed, Event, Stage, VerificationDone
from engine.schema.trial import PatchRef
from engine.stages.deployment import Deployment, deploy
from engine.study import run_study
from engine.task.load import load_task
from tests.study.simulated import Death
from tests.study.studies import Cluster, context, read
from tests.study.surface import CONFIG, KNOBS, write_project

PATCH = """\
--- a/model.py
+++ b/model.py
@@ -1 +1,2 @@
 WIDTH = 8
+FUSED = True
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A study with a verified winner, not deployed."""
    cluster = Cluster(tmp_path_factory.mktemp("finished"))
    cluster.run(trials=5)
    assert verified_verdict(read(cluster.root)) is not None
    return cluster


@pytest.fixture
def identity(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Git without the user's own settings."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", "/dev/null")
    monkeypatch.setenv("HOME", str(tmp_path))


pytestmark = pytest.mark.usefixtures("identity")


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=somebody", "-c", "user.email=somebody@example.org", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def repository(folder: Path, prefix: str = "") -> Path:
    """A repository that holds the project, possibly in a subfolder; returns the project's folder."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main")
    project = write_project(folder / (prefix or "."), None) if prefix else _fill(folder)
    if prefix:
        (folder / "README").write_text("another project lies beside it\n")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "begin")
    return project


def _fill(folder: Path) -> Path:
    scratch = write_project(folder.parent / f"{folder.name}-scratch")
    for path in scratch.iterdir():
        shutil.move(str(path), folder / path.name)
    scratch.rmdir()
    return folder


def apply(root: Path, target: Path, *, dry_run: bool = False) -> Deployment:
    folder = StudyFolder.open(root)
    return deploy(folder, load_task(folder.task_file), read(root), target, dry_run=dry_run)


def winner(root: Path) -> dict[str, object]:
    verdict = verified_verdict(read(root))
    assert verdict is not None
    return dict(verdict.candidate.configuration)


def holds_winner(root: Path, project: Path) -> bool:
    config = tomllib.loads((project / "config.toml").read_text())
    keys = {name: key.split(".") for name, (key, _) in KNOBS.items()}
    return {name: config[section][leaf] for name, (section, leaf) in keys.items()} == winner(root)


def test_a_target_that_does_not_exist_becomes_a_repository(finished: Cluster, tmp_path: Path) -> None:
    """First commit: the project as it was measured; second: the winner; nothing else, comments kept."""
    target = tmp_path / "made" / "here"
    done = apply(finished.root, target)
    assert holds_winner(finished.root, target)
    assert "# training configuration" in (target / "config.toml").read_text()
    assert git(target, "branch", "--show-current") == done.branch
    assert len(git(target, "log", "--format=%H").splitlines()) == 2
    assert git(target, "show", f"{done.branch}~1:config.toml") == CONFIG.strip()
    assert git(target, "status", "--porcelain") == ""
    assert git(target, "diff", "--name-only", "HEAD~1", "HEAD") == "config.toml"


@pytest.mark.parametrize("prefix", ["", "jobs/llm"])
def test_an_existing_repository_gets_a_branch(finished: Cluster, tmp_path: Path, prefix: str) -> None:
    """Also where the project is a subfolder; other branches and files stay as they are."""
    project = repository(tmp_path / "repository", prefix)
    before = git(project, "rev-parse", "main")
    done = apply(finished.root, project)
    assert holds_winner(finished.root, project)
    assert git(project, "branch", "--show-current") == done.branch
    assert git(project, "rev-parse", "main") == before
    assert done.commits == (git(project, "rev-parse", "HEAD"),)
    changed = git(project, "diff", "--name-only", "main", done.branch)
    assert changed == (f"{prefix}/" if prefix else "") + "config.toml"
    assert git(project, "worktree", "list").count("\n") == 0


def test_rollback_commands_work(finished: Cluster, tmp_path: Path) -> None:
    """The two commands that are shown bring everything back."""
    project = repository(tmp_path / "repository")
    before = (git(project, "rev-parse", "HEAD"), (project / "config.toml").read_text())
    done = apply(finished.root, project)
    for command in done.rollback:
        subprocess.run(shlex.split(command), check=True, capture_output=True)
    assert (git(project, "rev-parse", "HEAD"), (project / "config.toml").read_text()) == before
    assert git(project, "branch", "--list", "infrarsi/*") == ""
    apply(finished.root, project)
    assert holds_winner(finished.root, project)


@pytest.mark.parametrize("exists", [True, False])
def test_a_dry_run_changes_nothing(finished: Cluster, tmp_path: Path, exists: bool) -> None:
    """It shows the diff; no branch, no commit, no file, no folder is left."""
    target = tmp_path / "repository"
    if exists:
        repository(target)
        before = _everything(target)
    done = apply(finished.root, target, dry_run=True)
    assert "config.toml" in done.diff
    assert done.dry_run
    assert done.target == str(target)
    if exists:
        assert _everything(target) == before
    else:
        assert not target.exists()
        assert not (finished.root / "snapshot" / "files" / ".git").exists()


def _everything(folder: Path) -> dict[str, str]:
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }
    return {
        **files,
        "refs": git(folder, "for-each-ref"),
        "head": git(folder, "rev-parse", "HEAD"),
        "worktrees": git(folder, "worktree", "list"),
    }


@pytest.mark.parametrize("change", ["edited", "untracked"])
def test_a_dirty_tree_is_refused(finished: Cluster, tmp_path: Path, change: str) -> None:
    """Uncommitted work is never touched; the message names a file."""
    project = repository(tmp_path / "repository")
    name = "train.py" if change == "edited" else "notes.txt"
    (project / name).write_text("mine\n")
    with pytest.raises(UsageError, match=name):
        apply(finished.root, project)
    assert (project / name).read_text() == "mine\n"
    assert git(project, "branch", "--list", "infrarsi/*") == ""


@pytest.mark.parametrize("change", ["edited", "removed"])
def test_a_diverged_project_is_refused(finished: Cluster, tmp_path: Path, change: str) -> None:
    """What was measured is not what is there: the gain would be a guess."""
    project = repository(tmp_path / "repository")
    if change == "edited":
        (project / "train.py").write_text("import faster\n")
    else:
        (project / "train.py").unlink()
    git(project, "commit", "--quiet", "--all", "--message", "go on")
    with pytest.raises(UsageError, match=r"train\.py"):
        apply(finished.root, project)


def test_an_existing_branch_is_refused(finished: Cluster, tmp_path: Path) -> None:
    """A second deployment does not overwrite the first one's branch."""
    project = repository(tmp_path / "repository")
    done = apply(finished.root, project)
    git(project, "switch", "--quiet", "main")
    with pytest.raises(UsageError, match="exists already"):
        apply(finished.root, project)
    assert git(project, "rev-parse", done.branch) == done.commits[-1]


def test_rollback_from_a_detached_commit(finished: Cluster, tmp_path: Path) -> None:
    """Where no branch was checked out, the way back is to the commit."""
    project = repository(tmp_path / "my repository")
    git(project, "switch", "--quiet", "--detach", "main")
    done = apply(finished.root, project)
    for command in done.rollback:
        subprocess.run(shlex.split(command), check=True, capture_output=True)
    assert git(project, "rev-parse", "HEAD") == git(project, "rev-parse", "main")
    assert git(project, "branch", "--list", "infrarsi/*") == ""


def test_a_folder_without_git_is_refused(
    finished: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no way back without version control."""
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    project = write_project(tmp_path / "plain")
    with pytest.raises(UsageError, match="git working tree"):
        apply(finished.root, project)


def test_patches_become_commits_of_their_own(finished: Cluster, tmp_path: Path) -> None:
    """One commit per patch, then one for the configuration."""
    root = tmp_path / "study"
    shutil.copytree(finished.root, root)
    digest = hashlib.sha256(PATCH.encode()).hexdigest()
    write_text(root / "patches" / f"{digest}.patch", PATCH)
    verdict = verified_verdict(read(root))
    assert verdict is not None
    reference = PatchRef(name="fuse", sha256=digest)
    candidate = verdict.candidate.model_copy(update={"patches": (reference,)})
    with StudySession(StudyFolder.open(root), finished.clock) as session:
        session.record(VerificationDone(verdicts=(verdict.model_copy(update={"candidate": candidate}),)))
    project = repository(tmp_path / "repository")
    done = apply(root, project)
    assert len(done.commits) == 2
    assert git(project, "log", "--format=%s", "--reverse", "main..HEAD").splitlines() == [
        "Apply patch fuse",
        "Use the verified faster configuration",
    ]
    assert "FUSED" in (project / "model.py").read_text()
    assert holds_winner(root, project)


@pytest.mark.parametrize("exists", [True, False])
def test_a_study_deploys_at_its_end(tmp_path: Path, exists: bool) -> None:
    """--deploy DIR is the fifth stage; running the study again deploys nothing twice."""
    cluster = Cluster(tmp_path)
    target = tmp_path / "target"
    if exists:
        repository(target)
    state = cluster.run(trials=4, deploy_to=str(target))
    assert state.deployed is not None
    assert holds_winner(cluster.root, target)
    count = git(target, "rev-list", "--count", "HEAD")
    assert cluster.go().stage is Stage.DONE
    assert git(target, "rev-list", "--count", "HEAD") == count


@pytest.mark.parametrize("exists", [True, False])
def test_death_after_deploying_before_recording_it(tmp_path: Path, exists: bool) -> None:
    """The resumed engine finds its own branch, records it and makes no second one."""
    cluster = Cluster(tmp_path)
    target = tmp_path / "target"
    if exists:
        repository(target)
    cluster.start(trials=4, deploy_to=str(target))
    folder = cluster.root

    class Mortal(StudySession):
        def record(self, event: Event) -> None:
            if isinstance(event, Deployed):
                raise Death
            super().record(event)

    session = Mortal(StudyFolder.open(folder), cluster.clock)
    with pytest.raises(Death):
        run_study(context(session, cluster.executor, cluster.clock))
    before = git(target, "rev-parse", "HEAD")
    state = cluster.go()
    assert state.stage is Stage.DONE
    assert state.deployed is not None
    assert state.deployed.commits == (before,)
    assert git(target, "rev-parse", "HEAD") == before
