"""Sample projects loaded in this process, and copies of them with tiny sizes."""

from __future__ import annotations

import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SAMPLES = ROOT / "sample_tasks"
CHEATS = Path(__file__).parent / "patches"
TINY = {
    "dense_gpt": {
        "vocab": 128,
        "sequence": 32,
        "width": 32,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "ffn": 64,
    },
    "moe_gpt": {"vocab": 128, "sequence": 32, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ffn": 16},
}
sys.path.insert(0, str(SAMPLES))  # the recorder is started from there

numbers = itertools.count()


def load(path: Path) -> ModuleType:
    """A Python file as a module of its own."""
    name = f"sample_{next(numbers)}_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def apply(patch: Path, project: Path) -> None:
    """Apply a patch as a user would; raises when it does not fit."""
    command = ["git", "apply", "--unsafe-paths", f"--directory={project}", str(patch)]
    subprocess.run(command, cwd="/", check=True, capture_output=True)


def set_values(config: Path, values: dict[str, Any]) -> None:
    """Overwrite keys of a TOML file in place; each key occurs once."""
    text = config.read_text()
    for key, value in values.items():
        literal = f'"{value}"' if isinstance(value, str) else str(value).lower()
        text, found = re.subn(rf"(?m)^{key} = \S+", f"{key} = {literal}", text)
        assert found == 1, key
    config.write_text(text)


def tiny_copy(name: str, target: Path) -> Path:
    """A copy of a sample in which an update takes milliseconds."""
    shutil.copytree(SAMPLES / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    set_values(target / "config.toml", {**TINY[name], "max_steps": 8, "corpus_words": 50})
    return target


def patches(*folders: Path) -> list[Any]:
    """(sample, patch file) of every patch in the folders, each of them below a folder named as its sample."""
    files = sorted(patch for folder in folders for patch in folder.glob("*.patch"))
    samples = [next(name for name in TINY if name in patch.parts) for patch in files]
    pairs = zip(samples, files, strict=True)
    return [pytest.param(sample, patch, id=f"{sample}-{patch.stem}") for sample, patch in pairs]
