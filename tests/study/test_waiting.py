"""Who waits in a queue is told about: with the reason, at most once a minute, and once when it stalls."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

from engine.journal.state import TrialState
from engine.schema.job import JobState, JobStatus
from engine.stages.hooks import Hooks, StudyEvent
from engine.stages.waiting import STALLED_S, WaitingWatch
from engine.study import run_study
from tests.cli.stories import proposed
from tests.study.simulated import VirtualClock
from tests.study.studies import Cluster, engine

POLL_S = 10.0


class Queue:
    """One trial in a queue, looked at every POLL_S seconds of virtual time."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.said: list[tuple[float, str]] = []
        self.events: list[StudyEvent] = []
        self.begin = self.clock.now()
        hooks = Hooks(say=self._say, happened=self.events.append)
        self.watch = WaitingWatch(self.clock, hooks)
        self.trial = TrialState(proposed("t003"), self.begin, submitted_at=self.begin)

    def _say(self, text: str) -> None:
        self.said.append((self.clock.now() - self.begin, text))

    def look(self, seconds: float, reason: str, state: JobState = JobState.PENDING) -> None:
        """Poll for some time."""
        for _ in range(int(seconds / POLL_S)):
            self.clock.sleep(POLL_S)
            self.watch(self.trial, JobStatus(state=state, reason=reason, as_of=self.clock.now()))


def test_a_wait_is_told_with_its_reason() -> None:
    """The sentence names the trial, how long it waits and why."""
    queue = Queue()
    queue.look(42 * 60, "all nodes are in use")
    assert "t003 waits for 2 min: all nodes are in use" in [text for _, text in queue.said]
    assert all(text.endswith(": all nodes are in use") for _, text in queue.said)


def test_a_wait_is_told_at_most_once_a_minute() -> None:
    """Even a reason that changes at every look is told once a minute; one that stays, more seldom."""
    restless, calm = Queue(), Queue()
    for number in range(360):
        restless.look(POLL_S, f"reason {number}")
    times = [at for at, _ in restless.said]
    assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= 60.0
    calm.look(12 * 3600, "all nodes are in use")
    assert 5 <= len(calm.said) <= 20


def test_a_short_wait_is_not_told() -> None:
    """A queue of a minute is nothing to talk about."""
    queue = Queue()
    queue.look(60, "all nodes are in use")
    queue.look(600, "", JobState.RUNNING)
    assert queue.said == []


def test_an_hour_in_the_queue_is_one_event() -> None:
    """A stalled trial is an event once, however long it waits."""
    queue = Queue()
    queue.look(STALLED_S - 2 * POLL_S, "all nodes are in use")
    assert queue.events == []
    queue.look(5 * STALLED_S, "all nodes are in use")
    assert queue.events == [StudyEvent.STALLED]


def test_a_study_tells_about_its_queue(tmp_path: Path) -> None:
    """Every trial of a study whose jobs wait for two hours is told about, and the study ends as ever."""
    cluster = Cluster(tmp_path)
    cluster.executor.queue_s = 7200.0
    said: list[str] = []
    events: list[StudyEvent] = []
    cluster.start(trials=2)
    with engine(cluster.root, cluster.executor, cluster.clock) as study:
        hooks = Hooks(say=said.append, happened=events.append)
        run_study(dataclasses.replace(study, hooks=hooks))
        names = set(study.state.trials)
    assert {text.split()[0] for text in said} == names
    assert events.count(StudyEvent.STALLED) == len(names)
    assert events[-1] is StudyEvent.FINISHED
