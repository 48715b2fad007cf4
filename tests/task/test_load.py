from __future__ import annotations

import os
import sys
from pathlib import Path

from engine.schema.base import Scalar
from engine.task.freeze import freeze_task
from engine.task.load import load_task
from tests.task.project import TASK, make_project, with_parameter


def test_baseline_is_read_from_the_project(tmp_path: Path) -> None:
    """Without `default`, every baseline value is the one that the bindings hold."""
    task = load_task(make_project(tmp_path).parent, env={})
    assert task.space.baseline() == {
        "micro_batch_size": 2,
        "compute_dtype": "fp32",
        "tf32_matmul": False,
        "allocator_config": "default",
        "attention_backend": "eager",
    }
    assert task.space.resolve({})["gradient_accumulation"] == 2
    assert task.space.global_batch == 8
    assert task.python == sys.executable
    assert task.project == tmp_path
    assert task.space.size("initial") == 2 * 2 * 2 * 2 * 2
    assert task.space.size() == 4 * 2 * 2 * 2 * 2
    assert task.space.bound_files() == ("config.toml", "train.py", "model.yaml")


def test_variables_without_default_are_read_from_the_environment(tmp_path: Path) -> None:
    """A variable's baseline value is that of the environment that is given."""
    task = load_task(make_project(tmp_path), env={"ALLOCATOR": "max_split:128"})
    assert task.space.baseline()["allocator_config"] == "big"


def test_normal_form_hides_what_has_no_effect(tmp_path: Path) -> None:
    """Configurations that differ only where `when` does not hold have one normal form."""
    space = load_task(make_project(tmp_path), env={}).space
    off: dict[str, Scalar] = {"compute_dtype": "bf16", "tf32_matmul": False}
    on: dict[str, Scalar] = {"compute_dtype": "bf16", "tf32_matmul": True}
    assert space.normalise(off) == space.normalise(on)
    assert space.normalise({"tf32_matmul": True}) != space.normalise({})
    assert "tf32_matmul" not in space.active(off)


def test_violations_show_the_whole_equation(tmp_path: Path) -> None:
    """A broken requirement is shown with names and with numbers."""
    space = load_task(make_project(tmp_path), env={}).space
    assert space.violations({"micro_batch_size": 4}) == []
    text = " ".join(space.violations({"micro_batch_size": 8}))
    assert "global_batch % (micro_batch_size * world_size) == 0 does not hold: 8 % (8 * 2) == 0" in text
    assert "gradient_accumulation = global_batch // (micro_batch_size * world_size) = 8 // (8 * 2)" in text


def test_written_values_are_what_is_read_back(tmp_path: Path) -> None:
    """A task whose project was written to loads with that configuration as its baseline."""
    task = load_task(make_project(tmp_path), env={})
    wanted: dict[str, Scalar] = {
        "micro_batch_size": 4,
        "compute_dtype": "bf16",
        "tf32_matmul": False,
        "allocator_config": "big",
        "attention_backend": "sdpa",
    }
    applied = task.write(tmp_path, task.space.assignments(wanted))
    assert applied.command == ["train.py", "--precision", "bf16", "--lr=0.1", "--out", "{output_dir}"]
    assert (applied.env, applied.unset) == ({"ALLOCATOR": "max_split:128"}, [])
    changed = TASK.replace('"--precision", "fp32"', '"--precision", "bf16"')
    (tmp_path / "infrarsi.toml").write_text(changed)
    again = load_task(tmp_path, env=applied.env)
    assert again.space.baseline() == wanted
    assert again.space.resolve({})["gradient_accumulation"] == 1


def test_writing_the_baseline_changes_no_byte(tmp_path: Path) -> None:
    """The baseline's trial runs the files as the user wrote them."""
    task = load_task(make_project(tmp_path), env={})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    applied = task.write(tmp_path, task.space.assignments(task.space.baseline()))
    assert applied.command == task.settings.task.command
    assert (applied.env, applied.unset) == ({}, ["ALLOCATOR"])
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_ranges_are_inclusive_and_exact(tmp_path: Path) -> None:
    """Steps of a tenth give tenths, both ends included."""
    text = with_parameter(
        """
        mechanism = "share"
        values = { min = 0.1, max = 0.5, step = 0.1 }
        default = 0.3
        bindings = [{ flag = "--share" }]
        """
    )
    share = load_task(make_project(tmp_path, text), env={}).space.by_mechanism["share"]
    assert share.values == (0.1, 0.2, 0.3, 0.4, 0.5)


def test_text_finds_its_canonical_value(tmp_path: Path) -> None:
    """Values of the command line are matched as written, whatever their type."""
    space = load_task(make_project(tmp_path), env={}).space
    assert space.canonical("micro_batch_size", "4") == 4
    assert space.canonical("tf32_matmul", "True") is True
    assert space.canonical("compute_dtype", "bf16") == "bf16"


def test_no_parameters_is_a_warning(tmp_path: Path) -> None:
    """A task without [[parameters]] loads, with an empty space and a sentence that says so."""
    task = load_task(make_project(tmp_path, '[task]\nname = "t"\ncommand = ["train.py"]\n'))
    assert task.space.parameters == ()
    assert task.space.size() == 1
    assert any("[[parameters]]" in warning for warning in task.warnings)


def test_global_batch_follows_from_the_baseline(tmp_path: Path) -> None:
    """Where no file names it, the global batch is micro-batch x accumulation x data-parallel ranks."""
    config = "[train]\nmicro_batch = 2\naccumulation = 3\n"
    task = load_task(make_project(tmp_path, config_toml=config), env={})
    assert task.space.global_batch == 12
    assert any("global_batch = 12" in warning for warning in task.warnings)


def test_byte_order_mark_and_windows_line_ends_load(tmp_path: Path) -> None:
    """A file saved by a Windows editor is the same task."""
    file = make_project(tmp_path)
    plain = load_task(file, env={}).space
    file.write_bytes(b"\xef\xbb\xbf" + TASK.replace("\n", "\r\n").encode())
    assert load_task(file, env={}).space == plain


def test_frozen_task_means_the_same_elsewhere(tmp_path: Path) -> None:
    """The study's copy loads from another folder, in another environment, to the same space."""
    (tmp_path / "project" / "corpus").mkdir(parents=True)
    text = TASK.replace('name = "tiny"', 'name = "tiny"\ndata = ["corpus"]')
    task = load_task(make_project(tmp_path / "project", text), env={"ALLOCATOR": "max_split:128"})
    study = tmp_path / "study"
    study.mkdir()
    (study / "infrarsi.toml").write_text(freeze_task(task, Path("../project")))
    frozen = load_task(study, env={"ALLOCATOR": "something else"})
    assert frozen.space.baseline() == task.space.baseline()
    assert frozen.data == task.data == (tmp_path / "project" / "corpus",)
    assert os.path.samefile(frozen.project, task.project)


def test_interpreter_of_a_virtual_environment_stays_a_link(tmp_path: Path) -> None:
    """Resolving the link would leave the virtual environment."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    text = TASK.replace('name = "tiny"', 'name = "tiny"\npython = "bin/python"')
    assert load_task(make_project(tmp_path, text), env={}).python == str(tmp_path / "bin" / "python")
