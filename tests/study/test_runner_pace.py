"""How often a job is looked at, and what that costs the engine's machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from engine.schema.job import JobState
from engine.trial.pace import LONGEST_S, SHORTEST_S, pause_s
from tests.study.studies import Cluster, engine, propose

WAIT_S = 3600.0
ALLOWED_SHARE = 0.01


@pytest.mark.parametrize("since_s", [0.0, 5.0, 20.0, 40.0, 80.0, 1e5])
def test_little_of_a_run_is_lost_at_its_end(since_s: float) -> None:
    """Often in the first seconds, then in proportion to the time that has passed, never beyond a second."""
    pause = pause_s(JobState.RUNNING, since_s)
    assert SHORTEST_S <= pause <= LONGEST_S
    assert pause <= max(SHORTEST_S, 0.0126 * since_s)
    assert since_s > 20.0 or pause == SHORTEST_S
    assert since_s < 80.0 or pause == LONGEST_S


def test_a_queue_is_looked_at_once_a_second() -> None:
    """A job that waits changes seldom; one that was just submitted may start at once."""
    assert pause_s(JobState.PENDING, 0.0) == SHORTEST_S
    assert pause_s(JobState.PENDING, 30.0) == LONGEST_S


def test_waiting_costs_next_to_nothing(tmp_path: Path) -> None:
    """An hour in the queue takes less than a hundredth of a core, whatever else the machine does."""
    cluster = Cluster(tmp_path)
    cluster.start()
    cluster.executor.queue_s = WAIT_S
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        trial = propose(study, "b001")
        study.runner.start(trial)
        before, begun = cluster.clock.now(), time.process_time()
        study.runner.wait_for_any([trial])
        share = (time.process_time() - begun) / (cluster.clock.now() - before)
    print(f"waiting took {100.0 * share:.3f} % of a core")
    assert share < ALLOWED_SHARE
