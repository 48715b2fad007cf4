"""A snapshot holds what the project is made of, byte for byte, and nothing that points out of it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine.errors import IntegrityError, ScopeError, UsageError
from engine.trial.file_tree import scan
from engine.trial.snapshot import Snapshot, take_snapshot
from tests.workspace.trees import git, make_repository, write_files

names = st.text(
    st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=10
).filter(lambda name: name not in (".", "..") and not name.casefold().startswith(".git"))


def test_git_decides_what_belongs(tmp_path: Path) -> None:
    """Tracked and untracked files, not ignored ones, nor deleted ones, nor .git."""
    project = make_repository(tmp_path / "p", {"a.py": "1", "gone.py": "2", ".gitignore": "*.pt\nout/\n"})
    write_files(project, {"new.py": "3", "big.pt": "4", "out/log": "5", ".venv/lib/x.py": "6"})
    (project / "gone.py").unlink()
    snapshot = take_snapshot(project, tmp_path / "s")
    assert sorted(snapshot.manifest) == [".gitignore", "a.py", "new.py"]
    assert snapshot.source == "git"


def test_without_git_caches_are_left_out(tmp_path: Path) -> None:
    """Virtual environments, caches and folders that call themselves so are no part of a project."""
    files = {
        "a.py": "1",
        "pkg/b.py": "2",
        "pkg/__pycache__/b.pyc": "3",
        "env/pyvenv.cfg": "",
        "env/lib/x": "4",
    }
    files |= {"study/.gitignore": "*\n", "study/journal/1": "5", "tagged/CACHEDIR.TAG": "", "tagged/y": "6"}
    snapshot = take_snapshot(write_files(tmp_path / "p", files), tmp_path / "s")
    assert sorted(snapshot.manifest) == ["a.py", "pkg/b.py"]
    assert snapshot.source == "walk"


def test_a_folder_that_an_enclosing_repository_ignores(tmp_path: Path) -> None:
    """A project inside somebody else's ignored folder is still a project."""
    make_repository(tmp_path / "outer", {".gitignore": "work/\n"})
    project = write_files(tmp_path / "outer" / "work", {"a.py": "1"})
    assert sorted(take_snapshot(project, tmp_path / "s").manifest) == ["a.py"]


def test_nested_repositories_are_part_of_the_project(tmp_path: Path) -> None:
    """A repository inside the project is listed by its own rules."""
    project = make_repository(tmp_path / "p", {"a.py": "1"})
    make_repository(project / "libs" / "inner", {"b.py": "2", ".gitignore": "*.so\n"})
    write_files(project, {"libs/inner/c.so": "3"})
    assert sorted(take_snapshot(project, tmp_path / "s").manifest) == [
        "a.py",
        "libs/inner/.gitignore",
        "libs/inner/b.py",
    ]


def test_variables_of_a_git_hook_do_not_confuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Started from within a git command, the project's own repository is still the one that is read."""
    other = make_repository(tmp_path / "other", {"x": "1"})
    project = make_repository(tmp_path / "p", {"a.py": "1"})
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    assert sorted(take_snapshot(project, tmp_path / "s").manifest) == ["a.py"]


@pytest.mark.parametrize("with_git", [True, False])
@given(
    tree=st.dictionaries(
        st.lists(names, min_size=1, max_size=3).map(tuple), st.binary(max_size=50), max_size=4
    )
)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_odd_names_and_bytes_survive(
    tmp_path_factory: pytest.TempPathFactory, with_git: bool, tree: dict[tuple[str, ...], bytes]
) -> None:
    """Spaces, quotes, newlines and any bytes are copied as they are; the stored manifest reads back equal."""
    base = tmp_path_factory.mktemp("odd")
    project = base / "p"
    project.mkdir()
    (project / "a").write_bytes(b"")
    for parts, content in tree.items():
        path = project.joinpath("d", *parts)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:  # one name is a file here and a folder there, or too long
            continue
    if with_git:
        git(project, "init", "--quiet")
    snapshot = take_snapshot(project, base / "s")
    expected = {
        path.relative_to(project).as_posix(): path.read_bytes()
        for path in project.rglob("*")
        if path.is_file() and ".git" not in path.parts
    }
    assert {path: (snapshot.files / path).read_bytes() for path in snapshot.manifest} == expected
    assert Snapshot.load(base / "s") == snapshot
    assert scan(snapshot.files) == snapshot.manifest


def test_names_that_are_no_utf8(tmp_path: Path) -> None:
    """A file name that no record can hold is refused with its bytes; ignored ones do not matter."""
    project = make_repository(tmp_path / "p", {"a": "1"})
    Path(os.fsdecode(os.fsencode(project) + b"/caf\xe9")).write_text("2")
    with pytest.raises(UsageError, match="not UTF-8") as caught:
        take_snapshot(project, tmp_path / "s")
    assert caught.value.value == b"caf\xe9"
    write_files(project, {".gitignore": "caf*\n"})
    assert sorted(take_snapshot(project, tmp_path / "s").manifest) == [".gitignore", "a"]


def test_modes_are_kept_and_nothing_is_shared(tmp_path: Path) -> None:
    """An executable stays one; the copy is a file of its own, not a hard link."""
    project = write_files(tmp_path / "p", {"run.sh": "x"})
    (project / "run.sh").chmod(0o750)
    snapshot = take_snapshot(project, tmp_path / "s")
    copy = snapshot.files / "run.sh"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o750
    assert copy.stat().st_nlink == 1
    copy.write_text("changed")
    assert (project / "run.sh").read_text() == "x"


def test_content_decides_the_digest(tmp_path: Path) -> None:
    """Equal projects have equal digests wherever they lie; content, name and mode make a difference."""
    first = write_files(tmp_path / "1", {"a": "1", "b": "2"})
    second = write_files(tmp_path / "2", {"b": "2", "a": "1"})
    digests = [take_snapshot(first, tmp_path / "s1").digest, take_snapshot(second, tmp_path / "s2").digest]
    (second / "a").chmod(0o755)
    digests.append(take_snapshot(second, tmp_path / "s3").digest)
    (second / "a").write_text("2")
    digests.append(take_snapshot(second, tmp_path / "s4").digest)
    assert digests[0] == digests[1]
    assert len(set(digests)) == 3


def test_links_inside_stay_links(tmp_path: Path) -> None:
    """Relative links are kept as they are, absolute ones into the project become relative."""
    project = write_files(tmp_path / "p", {"sub/a": "1"}).resolve()
    (project / "rel").symlink_to("sub/a")
    (project / "sub" / "abs").symlink_to(project / "sub")
    (project / "dangling").symlink_to("not-there")
    snapshot = take_snapshot(project, tmp_path / "s")
    assert (snapshot.manifest["rel"].target, snapshot.manifest["sub/abs"].target) == ("sub/a", ".")
    assert (snapshot.files / "sub" / "abs" / "a").resolve().is_relative_to(snapshot.files.resolve())


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", "sub/../../outside", "sneaky/outside"])
def test_links_out_are_refused(tmp_path: Path, target: str) -> None:
    """A trial could write through such a link; the error says how to declare data."""
    project = write_files(tmp_path / "p", {"sub/a": "1"})
    write_files(tmp_path, {"outside": "2"})
    if target.startswith("sneaky"):
        (project / "sneaky").symlink_to("..")
    (project / "link").symlink_to(target)
    with pytest.raises(ScopeError) as caught:
        take_snapshot(project, tmp_path / "s")
    assert "data = [" in (caught.value.hint or "")
    assert not (tmp_path / "s").exists()


def test_data_stays_where_it_is(tmp_path: Path) -> None:
    """Data inside the project is not copied but linked, a link itself too; outside it is left alone."""
    project = write_files(tmp_path / "p", {"a.py": "1", "data/x.bin": "22"})
    write_files(tmp_path, {"far/y.bin": "3"})
    (project / "far").symlink_to(tmp_path / "far")
    (project / "latest").symlink_to("data/x.bin")
    snapshot = take_snapshot(project, tmp_path / "s", data=["data", "far", str(tmp_path / "far")])
    assert sorted(snapshot.manifest) == ["a.py", "latest"]
    assert snapshot.data_links == {"data": str(project / "data"), "far": str(project / "far")}


def test_size_cap_names_the_biggest(tmp_path: Path) -> None:
    """Too much to copy is an error that says what to take out."""
    project = write_files(tmp_path / "p", {"a.py": "1", "weights.pt": "x" * 5000, "b.bin": "y" * 2000})
    with pytest.raises(UsageError, match=r"biggest: weights\.pt .*, b\.bin") as caught:
        take_snapshot(project, tmp_path / "s", size_cap=6000)
    assert "[task] data" in (caught.value.hint or "")
    assert take_snapshot(project, tmp_path / "s", data=["weights.pt"], size_cap=6000).manifest


def test_a_study_inside_the_project_does_not_swallow_itself(tmp_path: Path) -> None:
    """The snapshot's own folder is no part of the project."""
    project = write_files(tmp_path / "p", {"a.py": "1"})
    (project / "study").mkdir()
    for _ in range(2):
        assert sorted(take_snapshot(project, project / "study" / "s").manifest) == ["a.py"]


def test_pipes_and_sockets_are_skipped(tmp_path: Path) -> None:
    """Reading a pipe would never end."""
    project = write_files(tmp_path / "p", {"a.py": "1"})
    os.mkfifo(project / "pipe")
    assert sorted(take_snapshot(project, tmp_path / "s").manifest) == ["a.py"]


def test_damaged_manifests_are_noticed(tmp_path: Path) -> None:
    """A manifest that was edited, cut or removed is an integrity error."""
    project = write_files(tmp_path / "p", {"a.py": "1"})
    snapshot = take_snapshot(project, tmp_path / "s")
    file = tmp_path / "s" / "manifest.json"
    text = file.read_text()
    for damaged in (text[:-20], text.replace(snapshot.manifest["a.py"].sha256, "0" * 64)):
        file.write_text(damaged)
        with pytest.raises(IntegrityError):
            Snapshot.load(tmp_path / "s")
    file.unlink()
    with pytest.raises(IntegrityError):
        Snapshot.load(tmp_path / "s")
