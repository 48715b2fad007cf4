"""Commands in the pages are commands of the product."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from engine.errors import ExitCode
from infrarsi_tui.cli.commands import COMMANDS
from infrarsi_tui.cli.parser import build_parser
from infrarsi_tui.main import main
from tests.docs.pages import ROOT, Command, commands, fenced, pages

ALL = [command for page in pages() for command in commands(page)]
SCRIPT = "import argparse\n"


def test_there_are_commands() -> None:
    """The README shows the whole way: check, run, look, deploy."""
    shown = {command.words[0] for command in ALL if command.page == "README.md" and command.words}
    assert shown >= {"check", "run", "status", "deploy"}


@pytest.mark.parametrize("command", ALL, ids=str)
def test_commands_parse(command: Command) -> None:
    """Each command line of each page is accepted by the real parser."""
    if command.words and command.words[0].startswith("-"):
        with pytest.raises(SystemExit) as stop:
            build_parser("0").parse_args(list(command.words))
        assert stop.value.code == 0
        return
    parsed = build_parser("0").parse_args(list(command.words))
    assert parsed.command in COMMANDS


@pytest.mark.parametrize(
    "command",
    [command for command in ALL if command.words[:1] == ("check",) and (ROOT / command.words[1]).exists()],
    ids=str,
)
def test_checks_of_what_is_here_succeed(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """`infrarsi check` of a sample works as the page shows it, from the top of the repository."""
    monkeypatch.chdir(ROOT)
    mask = os.umask(0o022)
    try:
        assert main(list(command.words)) == ExitCode.DONE
    finally:
        os.umask(mask)


def test_the_readme_task_file_is_valid(tmp_path: Path) -> None:
    """The task file that the README shows passes `check` beside a script of that name."""
    (text,) = (block for block in fenced(ROOT / "README.md", "toml") if "[task]" in block)
    settings = tomllib.loads(text)
    project = tmp_path / "project"
    project.mkdir()
    (project / "infrarsi.toml").write_text(text, encoding="utf-8")
    (project / settings["task"]["command"][0]).write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "infrarsi_tui.main", "check", str(project)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == ExitCode.DONE, done.stderr
    assert "warning" not in done.stdout
