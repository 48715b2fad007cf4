"""What the tool itself costs: questions to the scheduler, CPU time, memory, and time between two runs.

The numbers are printed: `make drills` with `-s` or `-rP` shows them.
"""

from __future__ import annotations

import json
import statistics
import time
from typing import Any

import pytest

from engine.schema.study import Stage
from tests.drills.conftest import NewStudy
from tests.drills.drilled import DrilledStudy, Engine
from tests.drills.ending import assert_nothing_lost
from tests.drills.expense import Expense, expense, has_torch, peak_mib, watch_to_the_end
from tests.drills.holding import STEADY, assert_given_back, failed_by_themselves, gaps_s
from tests.slurm.trial_folder import read_json

LONGEST_GAP_S = 2.0
"""From the end of a run to the start of the next one in a held allocation."""
MOST_MIB = 250.0
MOST_CPU_S_PER_TRIAL = 1.0
MOST_OF_A_CORE = 0.01
LEAST_PAUSE_S = 30.0
"""Between two questions to the scheduler about a run under way."""
_WAIT_S = 190.0
_TRIALS = 10


@pytest.mark.drill
@pytest.mark.timeout(480)
@pytest.mark.parametrize("task", ["eight_held", "eight"])
def test_whole_study_is_cheap(plain: NewStudy, task: str) -> None:
    """A study of more than ten runs: a second of CPU each, little memory, no torch, no pauses where held."""
    drilled = plain(task, budget__trials=_TRIALS, **STEADY)
    engine = drilled.start("run")
    run = watch_to_the_end(engine.process.pid, 420.0)
    assert engine.wait().code in (0, 1)
    trials = len(drilled.state().trials)
    gaps = gaps_s(drilled)
    print(
        f"\n{task}: {trials} trials; engine {run.expense.own_s:.1f} s of CPU and its children "
        f"{run.expense.children_s:.1f} s, {run.expense.own_s / trials:.2f} and "
        f"{run.expense.children_s / trials:.2f} s a trial; peak {run.peak_mib:.0f} MiB, "
        f"{run.threads} threads; gaps: median {statistics.median(gaps):.2f} s, max {max(gaps):.2f} s, "
        f"{sum(gap > LONGEST_GAP_S for gap in gaps)} of {len(gaps)} above {LONGEST_GAP_S:g} s; "
        f"all: {[round(gap, 2) for gap in gaps]}"
    )
    state = assert_nothing_lost(drilled, failed_by_themselves(drilled), stage=Stage.DONE, slack_s=10.0)
    assert trials > _TRIALS
    assert run.peak_mib <= MOST_MIB
    assert not run.has_torch
    assert run.expense.own_s / trials <= MOST_CPU_S_PER_TRIAL
    if task == "eight_held":
        assert_given_back(drilled, state, 1)
        assert statistics.median(gaps) <= LONGEST_GAP_S
        assert max(gaps) <= LONGEST_GAP_S


@pytest.mark.drill
@pytest.mark.timeout(420)
def test_e27_long_wait_is_cheap(plain: NewStudy) -> None:
    """For minutes of a run the engine asks Slurm twice a minute, and uses a hundredth of a core."""
    waits = [_Wait(plain(task, slurm__min_poll_s=10.0, **STEADY)) for task in ("eight", "eight_held")]
    time.sleep(_WAIT_S)
    for wait in waits:
        wait.report()
        wait.drilled.release()
    assert [wait.engine.wait().code for wait in waits] == [0, 0]
    for wait in waits:
        assert_nothing_lost(wait.drilled, failed_by_themselves(wait.drilled), slack_s=10.0)
    assert all(wait.calls <= 1 + wait.wall_s / LEAST_PAUSE_S for wait in waits)
    assert max(wait.share_of_a_core for wait in waits) <= MOST_OF_A_CORE


class _Wait:
    """An engine that waits for a run which is under way."""

    def __init__(self, drilled: DrilledStudy) -> None:
        drilled.hold_next()
        self.drilled = drilled
        self.engine: Engine = drilled.start()
        trial = drilled.until_held()
        self._agent = int(read_json(drilled.folder.trial(trial) / "job.json")["pid"])
        self._before = expense(self.engine.process.pid), expense(self._agent)
        self.calls, self.wall_s, self.share_of_a_core = 0, 0.0, 0.0

    def report(self) -> None:
        """Say, and keep, what the wait has cost until now."""
        pid = self.engine.process.pid
        engine, agent = expense(pid), expense(self._agent)
        calls = [call for call in self._calls() if self._before[0].at <= call["at"] <= engine.at]
        before, agent_before = self._before
        self.wall_s = wall_s = engine.at - before.at
        self.calls = len(calls)
        self.share_of_a_core = _spent_s(before, engine) / wall_s
        print(
            f"\n{self.drilled.task}: {wall_s:.0f} s of waiting: {len(calls)} calls of "
            f"{sorted({call['argv'][0] for call in calls})}, {60.0 * len(calls) / wall_s:.2f} a minute; "
            f"engine {engine.own_s - before.own_s:.2f} s of CPU, children "
            f"{engine.children_s - before.children_s:.2f} s, {100 * self.share_of_a_core:.2f} % of a "
            f"core; agent {_spent_s(agent_before, agent):.2f} s; peak {peak_mib(pid):.0f} MiB"
        )
        assert not has_torch(pid)
        assert peak_mib(pid) <= MOST_MIB

    def _calls(self) -> list[dict[str, Any]]:
        lines = self.drilled.folder.scheduler_log.read_text().splitlines()
        return [json.loads(line) for line in lines]


def _spent_s(before: Expense, after: Expense) -> float:
    return after.own_s + after.children_s - before.own_s - before.children_s
