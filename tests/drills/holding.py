"""What the held allocations of a drilled study say, and what holds for them at its end."""

from __future__ import annotations

import datetime as dt
import itertools
from collections import Counter

import pytest

from engine.journal.state import StudyState
from engine.journal.summary import gpu_hours
from engine.schema.trial import InvariantStatus, OutcomeKind
from slurm.held.holder.ledger import Entry, LedgerReader
from slurm.held.holder.plan import EVENTS
from tests.drills.drilled import DrilledStudy
from tests.slurm.trial_folder import read_json, wait_for

GPUS_PER_NODE = 8
STEADY = {"pace__step_ms": 60}
"""Windows that are long enough to be measured on a machine which is busy with other things."""
_CLOCK_S = 3.0
_BUSY = frozenset({"clock_agreement", "steady_state"})


def numbers(drilled: DrilledStudy) -> list[int]:
    """The allocations that were ever asked for."""
    return sorted(int(path.name) for path in (drilled.study / "held").iterdir())


def events(drilled: DrilledStudy, number: int = 1) -> list[Entry]:
    """What the holder of an allocation has said so far."""
    return LedgerReader(drilled.study / "held" / str(number) / EVENTS).new()


def event(drilled: DrilledStudy, kind: str, number: int = 1, limit_s: float = 60.0) -> Entry:
    """The first event of a kind; waits for it."""
    path = drilled.study / "held" / str(number) / EVENTS

    def found() -> Entry | None:
        said = events(drilled, number) if path.exists() else []
        return next((entry for entry in said if entry["kind"] == kind), None)

    entry: Entry = wait_for(found, f"{kind} in allocation {number}", limit_s)
    return entry


def allocation_job(drilled: DrilledStudy, number: int = 1) -> str:
    """Slurm's id of an allocation."""
    return str(read_json(drilled.study / "held" / str(number) / "allocation.json")["job_id"])


def gaps_s(drilled: DrilledStudy) -> list[float]:
    """Seconds from the end of each run to the start of the next one, by their agents' clocks."""
    spans = []
    for result in drilled.folder.root.glob("trials/*/result.json"):
        started = float(read_json(result.with_name("job.json"))["started_at"])
        spans.append((started, float(read_json(result)["finished_at"])))
    return [after[0] - before[1] for before, after in itertools.pairwise(sorted(spans))]


def failed_by_themselves(drilled: DrilledStudy) -> dict[str, str]:
    """What a study comes to without any drill: search trials whose candidate failed or was rejected.

    Any run may be rejected for its clocks alone: then this machine was too busy for its agent.
    """
    kinds = {}
    for name, trial in drilled.state().trials.items():
        outcome = trial.outcome
        if outcome is None or outcome.kind not in (OutcomeKind.FAILED, OutcomeKind.REJECTED):
            continue
        is_blamed = outcome.attribution is not None and outcome.attribution.blame_candidate
        failed = {each.name for each in outcome.invariants if each.status is InvariantStatus.FAILED}
        is_rejected = outcome.kind is OutcomeKind.REJECTED
        if (name[0] in "tr" and (is_blamed or is_rejected)) or (is_rejected and failed <= _BUSY):
            kinds[name] = outcome.kind.value
    return kinds


def assert_given_back(drilled: DrilledStudy, state: StudyState, allocations: int) -> None:
    """Check that a study had so many allocations, each asked for once, given back, and paid for.

    No run was started in two of them, and none had a job of its own.
    """
    asked = [call for call in drilled.calls("sbatch") if call["returncode"] == 0]
    assert (numbers(drilled), len(asked)) == (list(range(1, allocations + 1)), allocations)
    said = [entry for number in numbers(drilled) for entry in events(drilled, number)]
    starts = Counter(entry["token"] for entry in said if entry["kind"] == "started")
    assert set(starts.values()) <= {1}, f"started twice: {starts}"
    assert {entry["kind"] for entry in said} >= {"allocated", "started"}
    names = {job["Name"] for job in drilled.cluster.ended_jobs()}
    assert not names & {drilled.job_name(name) for name in state.trials}, "a job beside the allocation"
    _assert_paid(drilled, state)


def _assert_paid(drilled: DrilledStudy, state: StudyState) -> None:
    """The hours of all allocations are those that Slurm saw, and all that the study is charged."""
    hours = 0.0
    for job_id, use in state.allocations.items():
        assert use.started_at is not None, use
        assert use.ended_at is not None, use
        runs = [run for run in drilled.cluster.ended_jobs() if run["JobId"] == job_id]
        assert runs, f"Slurm has not seen the end of {job_id}"
        held_s = use.ended_at - use.started_at
        assert held_s == pytest.approx(_seconds(runs[-1]), abs=_CLOCK_S), (use, runs)
        hours += held_s * use.gpus / 3600.0
    assert gpu_hours(state)["total"] == pytest.approx(hours, abs=GPUS_PER_NODE * _CLOCK_S / 3600.0)


def _seconds(run: dict[str, str]) -> float:
    start, end = (dt.datetime.fromisoformat(run[key]) for key in ("StartTime", "EndTime"))
    return (end - start).total_seconds()
