"""The wheel holds the product, all of it, and nothing else."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("engine", "infrarsi_tui", "slurm")
DATA = {
    "experience_store": "engine/_data/experience_store",
    "sample_tasks": "infrarsi_tui/_data/sample_tasks",
}


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    """Every file in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def _files(folder: Path) -> set[str]:
    ignored = {"__pycache__", "runs", "output"}
    return {
        path.relative_to(folder).as_posix()
        for path in folder.rglob("*")
        if path.is_file() and not ignored & set(path.parts)
    }


def test_top_level(names: set[str]) -> None:
    """Three packages and the metadata; no tests, no data folder that would shadow a user's."""
    top = {name.split("/")[0] for name in names}
    (metadata,) = (name for name in top if name.endswith(".dist-info"))
    assert top == {*PACKAGES, metadata}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_is_in_the_wheel(names: set[str], package: str) -> None:
    """What runs in the checkout runs where the wheel is installed."""
    modules = {
        f"{package}/{name}"
        for name in _files(ROOT / package)
        if name.endswith(".py") and not name.startswith("_data/")
    }
    assert modules
    assert modules <= names


@pytest.mark.parametrize("folder", sorted(DATA))
def test_data_travels_inside_the_packages(names: set[str], folder: str) -> None:
    """The data folders of the repository are whole, beside the code that reads them."""
    files = {f"{DATA[folder]}/{name}" for name in _files(ROOT / folder)}
    assert files
    assert files <= names


def test_what_is_read_at_run_time_is_there(names: set[str]) -> None:
    """Tables, schema and probe are in the wheel by name."""
    assert {
        "engine/_data/experience_store/mechanisms.parquet",
        "engine/_data/experience_store/mechanism_mappings.parquet",
        "engine/task/infrarsi.schema.json",
        "engine/probe/payload/sitecustomize.py",
        "engine/probe/payload/_infrarsi_probe/startup.py",
        "infrarsi_tui/_data/sample_tasks/dense_gpt/infrarsi.toml",
    } <= names


def test_nothing_generated_is_shipped(names: set[str]) -> None:
    """No caches, logs or studies."""
    assert [
        name for name in names if "__pycache__" in name or name.endswith((".pyc", ".log", ".jsonl"))
    ] == []


def test_one_command_and_the_licence(wheel: Path, names: set[str]) -> None:
    """The wheel installs `infrarsi` and carries its licence."""
    (points,) = (name for name in names if name.endswith("entry_points.txt"))
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(points).decode().split() == [
            "[console_scripts]", "infrarsi", "=", "infrarsi_tui.main:main",
        ]  # fmt: skip
    assert any(name.endswith("licenses/LICENSE") for name in names)
