"""The wheel, built once a worker, and an environment that holds it and nothing of the checkout."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _run(*words: str | Path) -> None:
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=240)
    if done.returncode:
        raise RuntimeError(f"{words}: {done.stdout}\n{done.stderr}")


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    _run(
        sys.executable, "-m", "build", "--wheel", "--no-isolation", "--skip-dependency-check",
        "--outdir", folder, ROOT,
    )  # fmt: skip
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel.

    The dependencies are those of the running environment: a path file adds its site-packages behind the
    environment's own. Path files inside a folder that was added so are not read, so an editable installation
    of the checkout there has no effect.
    """
    folder = tmp_path_factory.mktemp("installed") / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    _run(
        sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check",
        "install", "--quiet", "--no-deps", "--no-index", wheel,
    )  # fmt: skip
    (own,) = folder.glob("lib/python3*/site-packages")
    (own / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"
