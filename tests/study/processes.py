"""The command line as real processes, and what they leave behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from engine.errors import IntegrityError
from engine.journal.log import read_entries
from engine.journal.state import StudyState, replay

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).resolve().parent / "project"
LIMIT_S = 240.0


def copy_project(folder: Path, **replace: str) -> Path:
    """The pausing project; `replace` changes text of config.toml and infrarsi.toml ("old" → new)."""
    shutil.copytree(PROJECT, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("config.toml", "infrarsi.toml"):
        text = (folder / name).read_text()
        for old, new in replace.items():
            text = text.replace(old, new)
        (folder / name).write_text(text)
    return folder


def environment() -> dict[str, str]:
    """This process's, with the product on the path and one thread."""
    paths = [str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


def _heed_signals() -> None:
    """What nohup or a shell's `&` has made the tests ignore is not to be ignored by the engine."""
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def start(folder: Path, *arguments: object) -> subprocess.Popen[str]:
    """Start `infrarsi … --json` in a session of its own, as from a terminal."""
    words = [sys.executable, "-m", "infrarsi_tui.main", *map(str, arguments), "--json"]
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=_heed_signals,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    """Exit code, the JSON object on stdout, the narration."""
    try:
        out, narration = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, narration = process.communicate()
        raise AssertionError(f"no end within {LIMIT_S} s:\n{narration}") from None
    value = json.loads(out)
    assert isinstance(value, dict)
    return process.returncode, value, narration


def infrarsi(folder: Path, *arguments: object) -> tuple[int, dict[str, Any], str]:
    """Run a command to its end."""
    return finish(start(folder, *arguments))


def journal(study: Path) -> StudyState:
    """The study as far as it is written."""
    return replay(read_entries(study / "journal"))


def wait_for(
    process: subprocess.Popen[str], study: Path, condition: Callable[[StudyState], bool]
) -> StudyState:
    """Watch the journal until a condition holds; the engine must not end before that."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        if (study / "journal").is_dir():
            try:
                state = journal(study)
            except IntegrityError:  # a line that is being written right now
                continue
            if condition(state):
                return state
        if process.poll() is not None:
            out, narration = process.communicate()
            raise AssertionError(f"the engine ended early ({process.returncode}):\n{out}\n{narration}")
        time.sleep(0.01)
    raise AssertionError("the condition never held")


def processes_of(study: Path) -> list[str]:
    """Command lines of live processes that were started for a study."""
    mark, found = os.fsencode(study), []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes()
            about = command + (folder / "environ").read_bytes()
        except OSError:
            continue
        if mark in about and int(folder.name) != os.getpid():
            found.append(command.replace(b"\0", b" ").decode(errors="replace"))
    return found


def all_gone(study: Path) -> bool:
    """Whether nothing of a study runs any more, within what a clean end may take."""
    deadline = time.monotonic() + 20.0
    while processes_of(study):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
