"""The task files of the samples fit the projects beside them."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from engine.schema.task import TaskFile
from tests.sample_tasks.projects import SAMPLES

TASK_FILES = sorted(SAMPLES.glob("*/infrarsi*.toml"))


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def identity(path: Path) -> str:
    return f"{path.parent.name}-{path.name}"


@pytest.fixture(params=TASK_FILES, ids=identity)
def task_file(request: pytest.FixtureRequest) -> Path:
    """Every task file of every sample."""
    path: Path = request.param
    return path


def test_is_a_task_file(task_file: Path) -> None:
    """The file is a valid record: known keys, right types."""
    assert TaskFile.model_validate(read(task_file)).parameters


def test_bindings_exist_and_hold_the_default(task_file: Path) -> None:
    """Each file binding names a key of the configuration, which holds the literal of the default."""
    for parameter in read(task_file)["parameters"]:
        values = parameter["values"]
        literals = values if isinstance(values, dict) else {value: value for value in values}
        assert parameter["default"] in literals
        assert set(parameter.get("initial", [])) <= set(literals)
        for binding in parameter["bindings"]:
            if "file" in binding:
                section, key = binding["key"].split(".")
                config = read(task_file.parent / binding["file"])
                assert config[section][key] == literals[parameter["default"]]


def test_model_section_is_true(task_file: Path) -> None:
    """Sizes in [model] are those of the configuration that the command uses."""
    task = read(task_file)
    command = task["task"]["command"]
    sizes = read(task_file.parent / command[command.index("--config") + 1])["model"]
    names = {"layers": "layers", "hidden": "width", "heads": "heads", "kv_heads": "kv_heads", "ffn": "ffn"}
    for ours, theirs in {**names, "vocab": "vocab", "sequence": "sequence"}.items():
        assert task["model"][ours] == sizes[theirs]


def test_scope_names_files_of_the_project(task_file: Path) -> None:
    """Editable and locked files exist, and none is both."""
    scope = read(task_file)["scope"]
    assert not set(scope["editable"]) & set(scope["locked"])
    for name in scope["editable"] + scope["locked"]:
        assert (task_file.parent / name).is_file()


@pytest.mark.parametrize("path", [p for p in TASK_FILES if "gpu" in p.name], ids=identity)
def test_unrun_files_say_so(path: Path) -> None:
    """A task that was never run on GPUs says so in its first line."""
    assert path.read_text().startswith("# Not yet run on GPUs.\n")
