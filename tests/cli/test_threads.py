"""The engine on a login node: few threads, little memory, no training library; jobs are not limited so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from infrarsi_tui.threads import LIMITS, limit_threads
from slurm.agent.environment import scrubbed
from tests.cli.answers import ROOT

MOST_PROCESSES = 60
MOST_MIB = 250.0
SOMEBODY = 61234
"""Has no other processes, which would count."""
WHOLE_STUDY = """
import json, re, sys
from pathlib import Path
from infrarsi_tui.threads import limit_threads
import os
limit_threads(os.environ)
from tests.study.studies import Cluster
from tests.study.surface import task_text
cluster = Cluster(Path(sys.argv[1]), task=task_text(advisor="rules"))
cluster.run(trials=12, advisor="rules")
status = Path("/proc/self/status").read_text()
peak = int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]) / 1024
threads = int(re.search(r"Threads:\\s+(\\d+)", status)[1])
print(json.dumps({"peak_mib": peak, "threads": threads, "torch": "torch" in sys.modules}))
"""
TOO_MANY = f"""
import threading, time
for _ in range({MOST_PROCESSES} + 10):
    threading.Thread(target=time.sleep, args=(1,), daemon=True).start()
"""
PROPOSAL = """
import os
from infrarsi_tui.threads import limit_threads
limit_threads(os.environ)
from engine.mechanisms.table import load_mechanisms
assert load_mechanisms()
from engine.search.propose import propose
from engine.search.view import Proposal
from tests.search.surface import first_input, make_space
assert isinstance(propose(first_input(make_space(), 0)), Proposal)
print("proposed")
"""


def test_own_limits_do_not_reach_the_jobs() -> None:
    """One thread for us; jobs get what the caller had, or nothing."""
    environ = {"OMP_NUM_THREADS": "7", "PATH": "/bin"}
    limit_threads(environ)
    assert {name: environ[name] for name in LIMITS} == dict.fromkeys(LIMITS, "1")
    assert scrubbed(environ) == {"OMP_NUM_THREADS": "7", "PATH": "/bin"}


def test_limits_of_a_limited_process_keep_the_first_callers() -> None:
    """Called again, or in a child that inherited the note, the caller's own values are not lost."""
    environ = {"RAYON_NUM_THREADS": "3"}
    limit_threads(environ)
    limit_threads(environ)
    assert scrubbed(environ) == {"RAYON_NUM_THREADS": "3"}


@pytest.mark.parametrize("note", ["", "[]", "{", '"x"'])
def test_a_broken_note_is_passed_over(note: str) -> None:
    """Whatever stands in the variable, jobs get an environment."""
    assert scrubbed({"INFRARSI_THREADS_BEFORE": note, "PATH": "/bin"}) == {"PATH": "/bin"}


def _environment(home: Path) -> dict[str, str]:
    """Of a caller on a machine with many cores: each library would start a hundred threads."""
    return {
        **os.environ,
        **dict.fromkeys(LIMITS, "100"),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(home),
    }


def _as_somebody(words: Sequence[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command as a user who may only read, and have MOST_PROCESSES processes and threads."""
    return subprocess.run(
        [
            *("setpriv", f"--reuid={SOMEBODY}", f"--regid={SOMEBODY}", "--clear-groups"),
            # Wherever the interpreter lies; limits of processes hold all the same.
            *("--inh-caps=-all,+dac_read_search", "--ambient-caps=-all,+dac_read_search"),
            *("/bin/bash", "-c", f'ulimit -u {MOST_PROCESSES} && exec "$@"', "bash", *words),
        ],
        cwd="/",
        env=_environment(folder),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


@pytest.fixture
def somebody(tmp_path: Path) -> None:
    """Skips where this process may not become another user, or where limits of processes are not kept."""
    if os.geteuid() != 0:
        pytest.skip("only root may run something as another user")
    seen = _as_somebody([sys.executable, "-c", TOO_MANY], tmp_path)
    if "can't start new thread" not in seen.stderr:
        pytest.skip(f"no limit of processes is kept here: {seen.stderr.strip()[-200:]}")


@pytest.mark.usefixtures("somebody")
def test_check_starts_with_few_processes(tmp_path: Path) -> None:
    """`infrarsi check` works for a user with 60 processes and threads at most."""
    task = ROOT / "sample_tasks" / "dense_gpt"
    done = _as_somebody([sys.executable, "-m", "infrarsi_tui.main", "check", str(task), "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["task"]


@pytest.mark.usefixtures("somebody")
def test_a_proposal_needs_few_processes(tmp_path: Path) -> None:
    """So does a decision of the search with the mechanism table, numerics included."""
    done = _as_somebody([sys.executable, "-c", PROPOSAL], tmp_path)
    assert (done.returncode, done.stdout) == (0, "proposed\n"), done.stderr


def test_a_whole_study_is_small(tmp_path: Path) -> None:
    """Diagnosis, search, verification and report stay below 250 MiB, load no torch and keep few threads."""
    done = subprocess.run(
        [sys.executable, "-c", WHOLE_STUDY, str(tmp_path / "study")],
        cwd=ROOT,
        env=_environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["torch"] is False
    assert seen["peak_mib"] <= MOST_MIB
    assert seen["threads"] <= 10
