"""Copies of the cluster's project that a test may change, and orders for its ranks."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import tomlkit

HERE = Path(__file__).parent
TASKS = {
    "eight": "infrarsi.toml",
    "sixteen": "infrarsi.two_nodes.toml",
    "eight_held": "infrarsi.held.toml",
    "sixteen_held": "infrarsi.two_nodes_held.toml",
    "local": "infrarsi.local.toml",
}
"""Name of a task → its file in the folder `project`."""


def copy_project(folder: Path, task: str, **changes: Any) -> Path:
    """Copy payload and task file into one new folder.

    Args:
        folder: Is made; its parent has to exist.
        task: A name in `TASKS`.
        changes: Dotted keys with `__` for the dot. Keys of config.toml begin with its sections
            (`pace__step_ms=200`, `drill__mode="raise"`), all others are the task file's (`slurm__mem="300M"`,
            `budget__trials=2`).

    Returns:
        The folder: `infrarsi run FOLDER` works.
    """
    shutil.copytree(HERE / "payload", folder, ignore=shutil.ignore_patterns("__pycache__"))
    config = tomlkit.parse((folder / "config.toml").read_text())
    settings = tomlkit.parse((HERE / "project" / TASKS[task]).read_text())
    _set(settings, "task__project", ".")
    for key, value in changes.items():
        _set(config if key.partition("__")[0] in config else settings, key, value)
    (folder / "config.toml").write_text(tomlkit.dumps(config))
    (folder / "infrarsi.toml").write_text(tomlkit.dumps(settings))
    return folder


def _set(document: Any, key: str, value: Any) -> None:
    *sections, leaf = key.split("__")
    for section in sections:
        document = document.setdefault(section, {})
    document[leaf] = value


def order(folder: Path, mode: str, *, rank: int = 1, update: int = 0) -> None:
    """Tell a rank of a run under way (config key `drill.folder`) what to do wrong; see payload/drills.py."""
    temporary = folder / ".order.tmp"
    temporary.write_text(json.dumps({"mode": mode, "rank": rank, "update": update}))
    temporary.rename(folder / "order.json")


def release(folder: Path) -> None:
    """Let the ranks go on that wait."""
    (folder / "release").touch()
