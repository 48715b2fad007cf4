"""The tool starts fast on a login node: importing costs little, and does nothing."""

from __future__ import annotations

import json
import os
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import engine
import infrarsi_tui
import slurm
from tests.cli.answers import ROOT

HEAVY = {"torch", "textual", "anthropic", "polars", "scipy", "numpy", "submitit"}
NEVER = {"torch", "textual", "anthropic"}
RUN = "import sys; from infrarsi_tui.main import main\ntry: main({words!r})\nexcept SystemExit: pass\n"
REPORT = (
    "import sys, json; sys.stderr.write(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
)


def _modules() -> list[str]:
    packages = (engine, infrarsi_tui, slurm)
    found = [
        module.name
        for package in packages
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
        if ".payload" not in module.name and not module.name.endswith("__main__")
    ]
    return sorted(found)


def _loaded(code: str, folder: Path) -> set[str]:
    """Top-level modules that a fresh interpreter holds after some code."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{REPORT}"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stderr))


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--help"], ["check", str(ROOT / "sample_tasks" / "dense_gpt"), "--json"]],
    ids=lambda words: words[0],
)
def test_light_commands_load_nothing_heavy(tmp_path: Path, words: list[str]) -> None:
    """Version, help and check need no numerics, no scheduler library, no screen."""
    assert not _loaded(RUN.format(words=words), tmp_path) & HEAVY


def test_no_module_loads_torch_a_screen_or_an_advisor(tmp_path: Path) -> None:
    """Importing every module of the three packages loads none of the libraries a login node may lack."""
    modules = _modules()
    assert len(modules) > 100
    code = "import importlib\n" + "\n".join(f"importlib.import_module({name!r})" for name in modules)
    assert not _loaded(code, tmp_path) & NEVER


def test_importing_does_nothing(tmp_path: Path) -> None:
    """Importing writes no file, starts no thread, changes no variable and no signal handler."""
    code = "\n".join(
        [
            "import importlib, os, signal, threading",
            "before = (dict(os.environ), [signal.getsignal(n) for n in signal.valid_signals()])",
            *(f"importlib.import_module({name!r})" for name in _modules()),
            "assert threading.active_count() == 1, threading.enumerate()",
            "assert dict(os.environ) == before[0]",
            "assert [signal.getsignal(n) for n in signal.valid_signals()] == before[1]",
        ]
    )
    _loaded(code, tmp_path)
    assert list(tmp_path.iterdir()) == []
