"""What holds at the end of every drill, whatever was broken: nothing lost, nothing twice, nothing left."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path

import pytest

from engine.journal.state import StudyState, TrialState
from engine.journal.summary import gpu_hours
from engine.schema.study import Stage, TrialFinished, TrialProposed
from engine.schema.trial import OutcomeKind
from tests.drills.drilled import DrilledStudy
from tests.slurm.trial_folder import wait_for

_OPEN = frozenset(
    {"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT"}
)
_QUEUE_S = 30.0
"""A job that ended while the controller was away is known to have ended after a quarter of a minute."""
_CLOCK_S = 3.0
"""Slurm counts whole seconds."""
_AROUND_S = 10.0
"""A job begins before its agent and ends after it; of a short one Slurm may not have been asked by then."""


def assert_nothing_lost(
    drilled: DrilledStudy,
    outcomes: Mapping[str, str] | None = None,
    *,
    others: Collection[str] = ("completed",),
    stage: Stage = Stage.DIAGNOSIS,
    slack_s: float = _AROUND_S,
) -> StudyState:
    """Check the end of a study after a drill.

    Args:
        drilled: The study; its engines have ended.
        outcomes: Trial → kind of its outcome.
        others: Kinds of outcomes that the trials may have which are not named.
        stage: Where the study has to stand; one that stopped or failed must say why.
        slack_s: Seconds by which a trial may cost less than its job took by Slurm's clock, not more.

    Returns:
        The study at its end, for what only one drill expects.
    """
    assert all(engine.process.poll() is not None for engine in drilled.engines), "an engine still runs"
    state = drilled.state()
    assert state.stage is stage, (state.stage, state.note)
    assert state.note or stage not in (Stage.STOPPED, Stage.FAILED)
    _assert_one_outcome_each(drilled, state, outcomes or {}, others)
    assert_nothing_left(drilled)
    _assert_one_job_each(drilled, state)
    _assert_costs(drilled, state, slack_s)
    return state


def assert_nothing_left(drilled: DrilledStudy) -> None:
    """No job of ours is in the queue, and no process of the study runs, on any node."""
    wait_for(lambda: not open_jobs(drilled), "no job of ours is left", _QUEUE_S)
    wait_for(lambda: not processes_in(drilled.study), "no process of the study is left", 20.0)


def open_jobs(drilled: DrilledStudy) -> list[dict[str, str]]:
    """Our jobs that wait or run."""
    jobs = drilled.cluster.jobs()
    return [job for job in jobs if job["name"].startswith("infrarsi") and job["state"] in _OPEN]


def processes_in(study: Path) -> list[int]:
    """Processes whose words or variables name the study."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        texts = [_read(f"/proc/{name}/{part}") for part in ("cmdline", "environ")]
        if int(name) != os.getpid() and any(f"{study}/".encode() in text for text in texts):
            found.append(int(name))
    return found


def job_runs(drilled: DrilledStudy, trial_id: str) -> list[dict[str, str]]:
    """Every run that Slurm has seen end under the name of a trial's own job."""
    name = drilled.job_name(trial_id)
    return [run for run in drilled.cluster.ended_jobs() if run["Name"] == name and _began(run)]


def _assert_one_outcome_each(
    drilled: DrilledStudy, state: StudyState, outcomes: Mapping[str, str], others: Collection[str]
) -> None:
    events = [entry.data for entry in drilled.entries()]
    proposed = Counter(each.trial_id for each in events if isinstance(each, TrialProposed))
    finished = Counter(each.trial_id for each in events if isinstance(each, TrialFinished))
    assert set(proposed.values()) == {1}, f"proposed twice: {proposed}"
    assert set(finished.values()) == {1}, f"finished twice: {finished}"
    assert set(proposed) == set(finished), f"without an outcome: {set(proposed) - set(finished)}"
    kinds = {name: trial.outcome.kind.value for name, trial in state.trials.items() if trial.outcome}
    wrong = {name for name, kind in outcomes.items() if kinds.get(name) != kind}
    wrong |= {name for name, kind in kinds.items() if name not in outcomes and kind not in others}
    assert not wrong, {name: state.trials[name].outcome for name in wrong if name in state.trials}


def _assert_one_job_each(drilled: DrilledStudy, state: StudyState) -> None:
    tokens = [drilled.token(name) for name in state.trials if _was_submitted(drilled, name)]
    assert len(set(tokens)) == len(tokens), "two trials share a token"
    for name, trial in state.trials.items():
        if not _was_submitted(drilled, name) or _in_held_allocation(state, trial):
            continue
        jobs = {run["JobId"] for run in job_runs(drilled, name)}
        assert len(jobs) <= 1, f"{name} ran as jobs {jobs}"
        if trial.outcome is not None and trial.outcome.kind is OutcomeKind.COMPLETED:
            assert jobs, f"{name} completed, and Slurm knows no job of it"


def _assert_costs(drilled: DrilledStudy, state: StudyState, slack_s: float) -> None:
    """Every trial costs what its job took, and the sum is that of the parts."""
    spent = gpu_hours(state)
    parts = sum(trial.outcome.gpu_hours for trial in state.trials.values() if trial.outcome)
    assert spent["total"] == pytest.approx(parts + spent["idle"])
    ranks = _ranks(drilled)
    for name, trial in state.trials.items():
        if trial.outcome is None or not _was_submitted(drilled, name) or _in_held_allocation(state, trial):
            continue
        runs = job_runs(drilled, name)
        if len(runs) == 1:
            charged_s = trial.outcome.gpu_hours * 3600.0 / ranks
            took_s = _seconds(runs[0])
            assert took_s - slack_s <= charged_s <= took_s + _CLOCK_S, (name, charged_s, runs[0])


def _ranks(drilled: DrilledStudy) -> int:
    return 16 if drilled.task.startswith("sixteen") else 8


def _was_submitted(drilled: DrilledStudy, trial_id: str) -> bool:
    return (drilled.folder.trial(trial_id) / "claim").exists()


def _in_held_allocation(state: StudyState, trial: TrialState) -> bool:
    return trial.outcome is not None and trial.outcome.allocation in state.allocations


def _began(run: Mapping[str, str]) -> bool:
    """Whether a job was ever given nodes."""
    return run["NodeList"] not in ("", "(null)") and run["StartTime"] != "Unknown"


def _seconds(run: Mapping[str, str]) -> float:
    start, end = (dt.datetime.fromisoformat(run[key]) for key in ("StartTime", "EndTime"))
    return (end - start).total_seconds()


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
