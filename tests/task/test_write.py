"""Writing into a copy of the project: atomic, in place, with mode, links and line ends as they were."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from engine.schema.base import Scalar
from engine.schema.task import EnvBinding, FileBinding, PythonBinding
from engine.task.bindings.access import Assignment
from engine.task.bindings.literal import UNSET, BindingError
from engine.task.bindings.write import write_assignments, write_values
from engine.task.load import load_task
from tests.task.project import make_project


def test_mode_mark_and_line_ends_stay(tmp_path: Path) -> None:
    """A read-only file with a byte-order mark and Windows line ends keeps all three."""
    file = tmp_path / "c.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    file.chmod(0o440)
    write_assignments([Assignment(FileBinding(file="c.yaml", key="a"), 3)], tmp_path, [])
    assert file.read_bytes() == b"\xef\xbb\xbfa: 3\r\nb: 2\r\n"
    assert stat.S_IMODE(file.stat().st_mode) == 0o440
    assert [path.name for path in tmp_path.iterdir()] == ["c.yaml"]


def test_links_inside_are_followed_and_links_out_are_not(tmp_path: Path) -> None:
    """A linked configuration file stays a link; one that leads out of the copy is never written."""
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "outside.json").write_text('{"a": 1}')
    (work / "real.json").write_text('{"a": 1}')
    (work / "link.json").symlink_to("real.json")
    (work / "out.json").symlink_to("../outside.json")
    write_assignments([Assignment(FileBinding(file="link.json", key="a"), 2)], work, [])
    assert (work / "link.json").is_symlink()
    assert (work / "real.json").read_text() == '{"a": 2}'
    with pytest.raises(BindingError, match="leads out"):
        write_assignments([Assignment(FileBinding(file="out.json", key="a"), 2)], work, [])
    assert (tmp_path / "outside.json").read_text() == '{"a": 1}'


def test_several_values_of_one_file_are_written_together(tmp_path: Path) -> None:
    """If one of them cannot be written, none is."""
    (tmp_path / "t.py").write_text("A = 1\nB = f()\n")
    first = Assignment(PythonBinding(python="t.py", name="A"), 2)
    with pytest.raises(BindingError):
        write_assignments([first, Assignment(PythonBinding(python="t.py", name="B"), 2)], tmp_path, [])
    assert (tmp_path / "t.py").read_text() == "A = 1\nB = f()\n"
    write_assignments([first], tmp_path, [])
    assert (tmp_path / "t.py").read_text() == "A = 2\nB = f()\n"


def test_variables_are_set_or_removed() -> None:
    """Booleans and numbers become texts; unset ones are named so that the launcher removes them."""
    literals = {"A": True, "B": 1.5, "C": UNSET, "D": "x y"}
    assignments = [Assignment(EnvBinding(env=name), literal) for name, literal in literals.items()]
    applied = write_assignments(assignments, None, ["run"])
    assert applied == (["run"], {"A": "true", "B": "1.5", "D": "x y"}, ["C"])


def test_without_a_project_only_command_and_environment_are_computed(tmp_path: Path) -> None:
    """What a configuration starts with can be shown without touching a file."""
    task = load_task(make_project(tmp_path), env={})
    before = (tmp_path / "config.toml").read_bytes()
    configuration: dict[str, Scalar] = {"micro_batch_size": 4, "compute_dtype": "bf16"}
    applied = write_values(task.space, configuration, None, task.settings.task.command)
    assert applied.command[2] == "bf16"
    assert (tmp_path / "config.toml").read_bytes() == before
    write_values(task.space, configuration, tmp_path, task.settings.task.command)
    assert b"micro_batch = 4   # per rank\naccumulation = 1\n" in (tmp_path / "config.toml").read_bytes()
