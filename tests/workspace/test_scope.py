"""Scope: what patches may touch before a run, what has changed after it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import IntegrityError
from engine.schema.task import ScopeSection
from engine.trial.file_tree import scan
from engine.trial.scope import check_patch_scope
from engine.trial.snapshot import Snapshot, take_snapshot
from engine.trial.workspace import Workspace, prepare_workspace
from tests.workspace.trees import write_files

FILES = {
    "train.py": "x\n",
    "model.py": "x\n",
    "config.toml": "a = 1\n",
    "pkg/b.py": "x\n",
    "infrarsi.toml": "",
}
SCOPE = ScopeSection(editable=["model.py", "pkg"], locked=["train.py"])


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    project = write_files(tmp_path / "p", {**FILES, "data/x": "1"})
    (project / "train.py").chmod(0o755)
    (project / "alias").symlink_to("pkg/b.py")
    return take_snapshot(project, tmp_path / "s", data=["data"])


def patch(path: str) -> str:
    return f"--- a/{path}\n+++ b/{path}\n@@ -1 +1 @@\n-x\n+y\n"


@pytest.mark.parametrize(
    ("path", "editable", "words"),
    [
        ("model.py", ["model.py"], None),
        ("pkg/b.py", ["pkg"], None),
        ("model.py", [], "not editable"),
        ("train.py", ["**"], "locked"),
        ("config.toml", ["**"], "bound parameters"),
        ("config.toml", ["config.toml"], None),
        ("bound.py", ["*.py"], None),
        ("infrarsi.toml", ["infrarsi.toml"], "task file"),
        ("sub/infrarsi.toml", ["**"], "task file"),
    ],
)
def test_what_patches_may_touch(path: str, editable: list[str], words: str | None) -> None:
    """Editable and not locked; bound configuration and the task file need more than a glob."""
    found = check_patch_scope([path], editable, ["train.py"], ["config.toml", "bound.py"])
    assert [violation.path for violation in found] == ([] if words is None else [path])
    assert words is None or words in str(found[0])


def test_a_workspace_is_the_snapshot_with_its_data(tmp_path: Path, snapshot: Snapshot) -> None:
    """Files, modes and links are those of the snapshot; data is linked; nothing is shared with it."""
    (tmp_path / "t").mkdir()
    workspace = prepare_workspace(snapshot, tmp_path / "t" / "work")
    copied = scan(workspace.root)
    assert copied.pop("data").target == str(tmp_path / "p" / "data")
    assert copied == snapshot.manifest
    (workspace.root / "model.py").write_text("changed")
    assert (snapshot.files / "model.py").read_text() == "x\n"
    workspace.remove()
    assert not workspace.root.exists()
    assert (tmp_path / "p" / "data" / "x").read_text() == "1"


def test_a_damaged_snapshot_is_not_run(tmp_path: Path, snapshot: Snapshot) -> None:
    """A file that was edited or removed in the study folder is noticed before a trial runs on it."""
    (snapshot.files / "model.py").write_text("edited")
    with pytest.raises(IntegrityError, match=r"model\.py"):
        prepare_workspace(snapshot, tmp_path / "w1")
    (snapshot.files / "model.py").unlink()
    with pytest.raises(IntegrityError, match="missing"):
        prepare_workspace(snapshot, tmp_path / "w2")


def test_patches_in_and_out_of_scope(tmp_path: Path, snapshot: Snapshot) -> None:
    """Patched files are remembered; those out of scope are findings, configuration is none."""
    workspace = prepare_workspace(snapshot, tmp_path / "w", SCOPE, ["config.toml"])
    assert workspace.apply(patch("model.py")) is None
    assert workspace.apply(patch("train.py")) is None
    (workspace.root / "config.toml").write_text("a = 2\n")
    (violation,) = workspace.seal()
    assert "train.py" in violation
    loaded = Workspace.load(workspace.root)
    assert loaded.patched_files == workspace.patched_files == ("model.py", "train.py")
    assert loaded.findings() == (violation,)


def replace(path: Path, *, link: str | None = None, text: str | None = None, folder: bool = False) -> None:
    """Put something else in a file's place."""
    path.unlink()
    if link is not None:
        path.symlink_to(link)
    if text is not None:
        path.write_text(text)
    if folder:
        path.mkdir()


AFTER: list[tuple[str, Callable[[Path], object], str | None]] = [
    ("nothing", lambda root: None, None),
    ("new file", lambda root: (root / "log.txt").write_text("1"), None),
    ("cache", lambda root: write_files(root, {"pkg/__pycache__/b.pyc": "1"}), None),
    ("inner link", lambda root: (root / "latest").symlink_to("pkg"), None),
    ("touch", lambda root: (root / "train.py").touch(), None),
    ("changed", lambda root: (root / "train.py").write_text("y\n"), "'train.py': changed"),
    ("same length", lambda root: (root / "pkg" / "b.py").write_text("z\n"), "'pkg/b.py': changed"),
    ("deleted", lambda root: (root / "model.py").unlink(), "'model.py': deleted"),
    ("mode", lambda root: (root / "train.py").chmod(0o644), "mode"),
    ("configuration", lambda root: (root / "config.toml").write_text("a = 3\n"), "'config.toml': changed"),
    ("link out", lambda root: (root / "out").symlink_to("/etc"), "link out of the project"),
    ("retargeted", lambda root: replace(root / "alias", link="model.py"), "'alias': changed"),
    ("replaced", lambda root: replace(root / "alias", text="1"), "link by a file"),
    ("data", lambda root: replace(root / "data", link="pkg"), "'data': changed"),
    ("folder", lambda root: replace(root / "model.py", folder=True), "'model.py': deleted"),
]


@pytest.mark.parametrize(("change", "words"), [pytest.param(c, w, id=n) for n, c, w in AFTER])
def test_what_a_run_may_change(
    tmp_path: Path, snapshot: Snapshot, change: Callable[[Path], object], words: str | None
) -> None:
    """New files are reported apart; a changed, removed or replaced file of the project is a finding."""
    prepare_workspace(snapshot, tmp_path / "w").seal()
    change(tmp_path / "w")
    workspace = Workspace.load(tmp_path / "w")
    found = workspace.findings()
    assert len(found) == (0 if words is None else 1)
    assert words is None or words in found[0]


def test_created_files_are_listed(tmp_path: Path, snapshot: Snapshot) -> None:
    """What the script left in its folder can be shown."""
    prepare_workspace(snapshot, tmp_path / "w").seal()
    write_files(tmp_path / "w", {"out/log.txt": "1"})
    assert Workspace.load(tmp_path / "w").inspect().created == ("out/log.txt",)


def test_unsealed_is_not_judged(tmp_path: Path, snapshot: Snapshot) -> None:
    """Without the record of what was prepared, nothing can be said."""
    workspace = prepare_workspace(snapshot, tmp_path / "w")
    with pytest.raises(IntegrityError):
        workspace.findings()
    with pytest.raises(IntegrityError):
        Workspace.load(tmp_path / "w")
