"""The samples at full length: minutes each, alone on the machine. `make measure` runs them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.journal.folder import StudyFolder
from engine.journal.log import read_entries
from engine.journal.state import replay
from engine.schema.trial import OutcomeKind, TrialKind
from engine.task.load import load_task
from engine.trial.attribution.bound import censored_bound_gib

pytestmark = [pytest.mark.measure, pytest.mark.timeout(3600)]

ROOT = Path(__file__).resolve().parents[2]
NULL_REPETITIONS = 10
TIGHT_GIB = 0.6
"""Above the dense baseline's 0.52 GiB, below what larger micro-batches without recomputation need."""


def _infrarsi(*arguments: object) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "infrarsi_tui.main", *map(str, arguments), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000, check=False)
    return done.returncode, json.loads(done.stdout)


def test_the_moe_sample_gets_verifiably_faster(tmp_path: Path) -> None:
    """Twenty trials reach a verified speed-up with a lower end of at least 1.5."""
    code, summary = _infrarsi("run", "sample_tasks/moe_gpt", "--trials", 20, "--out", tmp_path / "study")
    assert code == 0
    assert summary["best"]["verified"] is True
    assert summary["best"]["speedup_ci"][0] >= 1.5


def test_the_memory_edge_is_real(tmp_path: Path) -> None:
    """Under a tight limit torch's allocator ends trials, which bound the memory of later proposals."""
    project = tmp_path / "dense_gpt"
    shutil.copytree(ROOT / "sample_tasks" / "dense_gpt", project)
    task_file = project / "infrarsi.toml"
    text = re.sub(r"memory_limit_gib = [\d.]+", f"memory_limit_gib = {TIGHT_GIB}", task_file.read_text())
    task_file.write_text(text)
    _infrarsi("run", project, "--trials", 8, "--out", tmp_path / "study")
    folder = StudyFolder.open(tmp_path / "study")
    state = replay(read_entries(folder.journal))
    bounded = [
        trial
        for trial in state.of_kind(TrialKind.SEARCH)
        if trial.outcome and trial.outcome.attribution and censored_bound_gib(trial.outcome.attribution)
    ]
    assert bounded
    first = bounded[0]
    assert first.outcome is not None
    assert first.outcome.kind is OutcomeKind.FAILED
    log = (folder.trial(first.trial_id) / "launcher.log").read_text()
    assert "DefaultCPUAllocator: can't allocate memory" in log
    tried = [trial.proposed for trial in state.of_kind(TrialKind.SEARCH)]
    later = tried[tried.index(first.proposed) + 1 :]
    assert first.proposed.candidate.key() not in {each.candidate.key() for each in later}
    assert all(each.predicted is None or (each.predicted.p_fits or 0.0) >= 0.1 for each in later)
    assert load_task(folder.task_file).settings.allocation.memory_limit_gib == TIGHT_GIB


def test_the_unchanged_job_is_never_verified_against_itself(tmp_path: Path) -> None:
    """Ten verifications of the baseline against itself claim nothing."""
    verdicts = []
    for _repetition in range(NULL_REPETITIONS):
        _code, value = _infrarsi("trial", "sample_tasks/moe_gpt", "--out", tmp_path / "study")
        assert value["outcome"] == "completed"
        assert value["speedup_ci"] is not None
        verdicts.append(value["verified"])
    assert verdicts == [False] * NULL_REPETITIONS
