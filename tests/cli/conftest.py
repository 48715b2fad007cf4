"""The command line, called in this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from infrarsi_tui.main import main
from tests.cli.answers import MINIMAL_TASK, Answer, Infrarsi


@pytest.fixture
def infrarsi(capfd: pytest.CaptureFixture[str]) -> Iterator[Infrarsi]:
    """Call the command line with words; leaves the process as it was."""
    mask, environ = os.umask(0o022), dict(os.environ)
    os.umask(mask)

    def call(*words: str | Path) -> Answer:
        capfd.readouterr()
        code = main([str(word) for word in words])
        written = capfd.readouterr()
        return Answer(int(code), written.out, written.err)

    yield call
    os.umask(mask)
    os.environ.clear()
    os.environ.update(environ)


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """A valid task with a script that is never run."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "infrarsi.toml").write_text(MINIMAL_TASK)
    (folder / "train.py").write_text("raise SystemExit('never run')\n")
    return folder
