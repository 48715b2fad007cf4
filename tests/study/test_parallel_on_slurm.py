"""Several trials at once on a real Slurm: side by side, adopted after a signal, verified on one node."""

from __future__ import annotations

import signal
from collections import Counter
from pathlib import Path

import pytest

from engine.journal.log import read_entries
from engine.journal.state import StudyState
from engine.schema.study import TrialFinished
from engine.schema.trial import OutcomeKind, TrialKind
from tests.slurm_cluster.cluster import SlurmCluster
from tests.slurm_cluster.projects import copy_project
from tests.study.processes import finish, infrarsi, journal, start, wait_for

pytestmark = pytest.mark.slow
SLOTS = 3
LIMIT_S = 540


@pytest.fixture
def task(tmp_path: Path) -> Path:
    """A job of two ranks; three of them run at once."""
    return copy_project(
        tmp_path / "project", "eight", allocation__gpus_per_node=2, slurm__parallel_trials=SLOTS
    )


def _open_with_handle(state: StudyState) -> list[str]:
    opened = [trial for trial in state.open_trials() if trial.proposed.kind is TrialKind.SEARCH]
    return [trial.trial_id for trial in opened if trial.handle is not None]


@pytest.mark.timeout(LIMIT_S + 60)
def test_trials_side_by_side(tmp_path: Path, task: Path, plain_cluster: SlurmCluster) -> None:
    """Three jobs at once; SIGTERM leaves them; they are adopted, each once; verification keeps its node."""
    study = tmp_path / "study"
    process = start(
        tmp_path, "run", task, "--out", study, "--executor", "slurm", "--trials", 6, "--display", "none"
    )
    wait_for(process, study, lambda state: len(_open_with_handle(state)) == SLOTS)
    names = [job["name"] for job in plain_cluster.jobs() if job["state"] in ("RUNNING", "PENDING")]
    process.send_signal(signal.SIGTERM)
    code, value, _ = finish(process)
    assert (code, value["error"]["kind"]) == (130, "detached")
    left = _open_with_handle(journal(study))
    assert 1 <= len(left) <= SLOTS
    assert len(names) == len(set(names))
    assert not list((study / "trials").glob("t*/cancel"))

    again = start(tmp_path, "resume", study, "--display", "none")
    wait_for(again, study, lambda state: "v004" in state.trials and state.trials["v004"].outcome is not None)
    infrarsi(tmp_path, "stop", study)
    finish(again)
    state = journal(study)
    assert len(state.counted(TrialKind.SEARCH)) == 6
    assert all(state.trials[name].outcome is not None for name in left)
    ends = Counter(
        entry.data.trial_id
        for entry in read_entries(study / "journal")
        if isinstance(entry.data, TrialFinished)
    )
    assert set(ends.values()) == {1}
    measured = [
        trial.outcome
        for trial in state.of_kind(TrialKind.VERIFICATION)
        if trial.outcome and trial.outcome.kind is OutcomeKind.COMPLETED
    ]
    assert len(measured) >= 2
    assert len({outcome.nodes for outcome in measured}) == 1
    assert not [job for job in plain_cluster.jobs() if job["state"] in ("RUNNING", "PENDING")]
