"""Patches: what git makes, applies; what may not be, is refused before any file changes."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.trial.file_tree import copy_tree, scan
from engine.trial.patching import Patch, PatchFailure, apply_patch, apply_patches, parse_patch
from tests.workspace.trees import TRAIN, diff_of, git, make_repository, write_files

ODD = ["a b.py", 'quo"te.py', "tab\t.py", "new\nline.py", "ünï.py", "back", "d é/x y.py", "--- a", "+++ b.py"]


def rewrite(name: str, text: str) -> Callable[[Path], object]:
    """A change that writes a file."""
    return lambda root: write_files(root, {name: text})


def plain_copy(repository: Path, target: Path) -> Path:
    """The repository's files without the repository."""
    paths = [path for path in scan(repository) if not path.startswith(".git/")]
    copy_tree(repository, target, paths)
    return target


CHANGES: list[tuple[str, Callable[[Path], object], set[str]]] = [
    ("modify", rewrite("train.py", TRAIN.replace("line 3", "LINE 3")), {"train.py"}),
    ("create", rewrite("deep/new/file.py", "x = 1\n"), {"deep/new/file.py"}),
    ("create empty", rewrite("empty.py", ""), {"empty.py"}),
    ("delete", lambda root: (root / "pkg" / "b.py").unlink(), {"pkg/b.py"}),
    ("rename", lambda root: (root / "pkg" / "b.py").rename(root / "moved b.py"), {"pkg/b.py", "moved b.py"}),
    ("mode", lambda root: (root / "train.py").chmod(0o755), {"train.py"}),
    ("no newline", rewrite("train.py", TRAIN + "end"), {"train.py"}),
    ("like headers", rewrite("pkg/b.py", "-- a/x\n++ b/y\n@@ -1 +1 @@\n"), {"pkg/b.py"}),
]


@pytest.mark.parametrize("inside_repository", [True, False])
@pytest.mark.parametrize(("change", "paths"), [pytest.param(c, p, id=n) for n, c, p in CHANGES])
def test_what_git_makes_applies(
    tmp_path: Path, change: Callable[[Path], object], paths: set[str], inside_repository: bool
) -> None:
    """The copy becomes what the changed repository was, inside an enclosing repository or not."""
    files = {"train.py": TRAIN, "pkg/b.py": TRAIN.replace("line", "-- a/x"), "other": "1\n"}
    repository = make_repository(tmp_path / "r", files)
    text = diff_of(repository, change)
    if inside_repository:
        git(tmp_path, "init", "--quiet")
    copy = plain_copy(repository, tmp_path / "w")
    change(repository)
    parsed = parse_patch(text)
    assert isinstance(parsed, Patch)
    assert set(parsed.paths) == paths
    assert apply_patch(copy, text) is None
    expected = {path: entry for path, entry in scan(repository).items() if not path.startswith(".git/")}
    assert {p: (e.sha256, e.mode & 0o111) for p, e in scan(copy).items()} == {
        p: (e.sha256, e.mode & 0o111) for p, e in expected.items()
    }


@pytest.mark.parametrize("name", ODD)
def test_odd_names(tmp_path: Path, name: str) -> None:
    """Names that git quotes are read as git reads them, for all kinds of change."""
    repository = make_repository(tmp_path / "r", {name: TRAIN})
    copy = plain_copy(repository, tmp_path / "w")
    edit = diff_of(repository, rewrite(name, TRAIN + "more\n"))
    rename = diff_of(repository, lambda root: (root / name).rename(root / "plain.py"))
    mode = diff_of(repository, lambda root: (root / name).chmod(0o755))
    for text, paths in ((edit, {name}), (rename, {name, "plain.py"}), (mode, {name})):
        parsed = parse_patch(text)
        assert isinstance(parsed, Patch)
        assert set(parsed.paths) == paths
    assert apply_patches(copy, [mode, edit]) is None
    assert (copy / name).read_text() == TRAIN + "more\n"
    assert stat.S_IMODE((copy / name).stat().st_mode) & 0o111


lines_of_a_file = st.lists(st.sampled_from("abc-+@ \\"), max_size=12)


@given(before=lines_of_a_file, after=lines_of_a_file)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_edit_is_carried_over(
    tmp_path_factory: pytest.TempPathFactory, before: list[str], after: list[str]
) -> None:
    """Whatever lines a file has, git's patch turns the one text into the other."""
    base = tmp_path_factory.mktemp("edit")
    old, new = ("\n".join(lines) + "\n" for lines in (before, after))
    repository = make_repository(base / "r", {"f": old, "g": "x\n"})
    text = diff_of(repository, rewrite("f", new))
    if old == new:
        assert isinstance(parse_patch(text), PatchFailure)
        return
    copy = plain_copy(repository, base / "w")
    assert apply_patch(copy, text) is None
    assert (copy / "f").read_text() == new
    assert (copy / "g").read_text() == "x\n"


def hunk(old: str, new: str) -> str:
    return f"--- {old}\n+++ {new}\n@@ -1 +1 @@\n-x\n+y\n"


def created(path: str, mode: str = "100644") -> str:
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n"
    return f"{header}--- /dev/null\n+++ b/{path}\n@@ -0,0 +1 @@\n+x\n"


REFUSED = [
    hunk("a/../f", "b/../f"),
    hunk("a/f/../../../etc/x", "b/f/../../../etc/x"),
    hunk("a//etc/passwd", "b//etc/passwd"),
    hunk("a/.git/config", "b/.git/config"),
    hunk("a/sub/.GIT/hooks/x", "b/sub/.GIT/hooks/x"),
    created(".git/hooks/pre-commit", "100755"),
    created("link", "120000"),
    created("module", "160000"),
    created("device", "100600"),
    '--- /dev/null\n+++ "b/caf\\351"\n@@ -0,0 +1 @@\n+x\n',
    "diff --git a/f b/../g\nsimilarity index 100%\nrename from f\nrename to ../g\n",
    "diff --git a/f b/f\nold mode 100644\nnew mode 120000\n",
    "diff --git a/f b/f\nindex 1..2 120000\n--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y\n",
    "diff --git a/f b/f\nindex 1..2\nGIT binary patch\nliteral 1\nIcmZQz\n\n",
    "diff --git a/f b/f\nindex 1..2 100644\nBinary files a/f and b/f differ\n",
    '--- "a/\\056\\056/f"\n+++ "b/\\056\\056/f"\n@@ -1 +1 @@\n-x\n+y\n',
    hunk("a/f", "b/f") + hunk("a/../f", "b/../f"),
]


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_never_applied(tmp_path: Path, text: str) -> None:
    """Paths out of the project or into .git, links, submodules and binaries: refused, nothing changed."""
    write_files(tmp_path, {"f": "x\n", "w/f": "x\n", "w/sub/a": "x\n"})
    before = scan(tmp_path)
    failure = apply_patch(tmp_path / "w", text)
    assert failure is not None
    assert failure.kind == "refused"
    assert scan(tmp_path) == before


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("", "malformed"),
        ("hello\n", "malformed"),
        ("@@ -1 +1 @@\n-x\n+y\n", "malformed"),
        ("--- a/f\n+++ b/f\n@@ -1,5 +1,5 @@\n-x\n+y\n", "malformed"),
        ("--- f\n+++ f\n@@ -1 +1 @@\n-x\n+y\n", "malformed"),
        ("--- a/f\n+++ b/f\n", "malformed"),
        (hunk("a/missing", "b/missing"), "conflict"),
        ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-other\n+y\n", "conflict"),
        (created("f"), "conflict"),
    ],
)
def test_failures_carry_the_words_of_git(tmp_path: Path, text: str, kind: str) -> None:
    """A patch that is none, or does not fit, is a value with a reason; nothing changed."""
    write_files(tmp_path, {"f": "x\n"})
    before = scan(tmp_path)
    failure = apply_patch(tmp_path, text)
    assert failure is not None
    assert failure.kind == kind
    assert failure.reason
    assert scan(tmp_path) == before


def test_all_or_nothing(tmp_path: Path) -> None:
    """One hunk that does not fit keeps the others from being applied."""
    write_files(tmp_path, {"f": "x\n", "g": "z\n"})
    assert apply_patch(tmp_path, hunk("a/f", "b/f") + hunk("a/g", "b/g")) is not None
    assert (tmp_path / "f").read_text() == "x\n"


def test_links_are_not_written_through(tmp_path: Path) -> None:
    """A folder or file that is a link in the copy is not patched: it may be shared data."""
    write_files(tmp_path, {"outside/f": "x\n"})
    work = write_files(tmp_path / "w", {"g": "1\n"})
    (work / "data").symlink_to("../outside")
    (work / "f").symlink_to("../outside/f")
    for text in (hunk("a/data/f", "b/data/f"), hunk("a/f", "b/f"), created("data/new")):
        failure = apply_patch(work, text)
        assert failure is not None
        assert failure.kind == "refused"
    assert (tmp_path / "outside" / "f").read_text() == "x\n"
    assert os.listdir(tmp_path / "outside") == ["f"]


def test_stacked_patches_build_on_each_other(tmp_path: Path) -> None:
    """Order matters, and the failing one is counted."""
    write_files(tmp_path, {"f": "x\n"})
    second = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-y\n+z\n"
    assert apply_patches(tmp_path, [hunk("a/f", "b/f"), second]) is None
    assert (tmp_path / "f").read_text() == "z\n"
    failure = apply_patches(tmp_path, [hunk("b/f", "a/f")])
    assert failure is not None
    assert "patch 1" in failure.reason


def test_settings_of_the_user_do_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whitespace fixing in ~/.gitconfig would change what was measured."""
    home = write_files(tmp_path / "home", {".gitconfig": "[apply]\n\twhitespace = fix\n"})
    monkeypatch.setenv("HOME", str(home))
    work = write_files(tmp_path / "w", {"f": "x\n"})
    assert apply_patch(work, "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-x\n+y  \n") is None
    assert (work / "f").read_text() == "y  \n"


def test_without_git_it_is_nobodys_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing tool is told apart from a bad patch."""
    write_files(tmp_path, {"f": "x\n"})
    monkeypatch.setenv("PATH", str(tmp_path))
    failure = apply_patch(tmp_path, hunk("a/f", "b/f"))
    assert failure is not None
    assert failure.kind == "tool"
