"""The watchdog's decisions, in chosen time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurm.agent.plan import load_plan
from slurm.agent.ranks import RankRecord
from slurm.agent.watch import DEATH_GRACE_S, STOP_GRACE_S, Watchdog
from tests.slurm.trial_folder import make_trial

NS = 1_000_000_000
Make = Callable[..., tuple[Watchdog, list[RankRecord]]]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """A watchdog that starts at 0 and its two ranks, whose processes are this one."""
    opened: list[RankRecord] = []

    def maker() -> tuple[Watchdog, list[RankRecord]]:
        timeouts = {"start_timeout_s": 10.0, "update_timeout_s": 3.0, "total_timeout_s": 100.0}
        make_trial(tmp_path / "t", "normal", ranks=2, **timeouts)
        plan = load_plan(tmp_path / "t" / "spec.json")
        for rank in range(2):
            record = RankRecord(rank, tmp_path / "t", wanted=5, limit_bytes=None)
            record.open({"k": "hello", "seq": 0, "t_ns": 0, "rank": rank}, os.getpid(), 0)
            opened.append(record)
        return Watchdog(plan, opened, 0), opened

    yield maker
    for record in opened:
        record.close()


def _update(record: RankRecord, at_s: float) -> None:
    record.take(b'{"k": "update", "seq": 1, "t_ns": 1, "i": 0}', int(at_s * NS))


def _end(record: RankRecord) -> None:
    record.take(b'{"k": "end", "seq": 2, "t_ns": 2, "updates": 1}', 0)


def test_start_timeout_waits_for_every_rank(make: Make) -> None:
    """One rank that never trains is enough, and the time runs from the launch."""
    watchdog, ranks = make()
    _update(ranks[0], 9.0)
    assert watchdog.verdict(10 * NS) is None
    assert watchdog.verdict(10 * NS + 1) == "start_timeout"


def test_update_timeout_runs_from_each_ranks_last_update(make: Make) -> None:
    """A rank that goes on does not cover for one that hangs."""
    watchdog, ranks = make()
    _update(ranks[0], 20.0)
    _update(ranks[1], 22.0)
    assert watchdog.verdict(23 * NS) is None
    assert watchdog.verdict(23 * NS + 1) == "update_timeout"


def test_ended_rank_owes_no_updates(make: Make) -> None:
    """After its end record a rank may wait for the others."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 1.0)
    _end(ranks[0])
    _update(ranks[1], 50.0)
    assert watchdog.verdict(52 * NS) is None
    assert not watchdog.all_ended()
    _end(ranks[1])
    assert watchdog.all_ended()


def test_launcher_that_stays_after_the_stop_is_ended(make: Make) -> None:
    """When every rank has ended, the launcher has a bounded time to follow."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 1.0)
        _end(record)
    watchdog.stop_sent_ns = 50 * NS
    assert watchdog.verdict(50 * NS + int(STOP_GRACE_S * NS)) is None
    assert watchdog.verdict(50 * NS + int(STOP_GRACE_S * NS) + 1) == "update_timeout"


def test_death_gives_the_others_their_grace(make: Make) -> None:
    """A rank whose process is gone without an end record ends the trial after the grace time."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 1.0)
    dead: Any = ranks[1]
    dead.close()
    assert watchdog.verdict(2 * NS) is None
    dead.meter.gone = True
    assert watchdog.verdict(3 * NS) is None
    _update(ranks[0], 3.0 + DEATH_GRACE_S)
    assert watchdog.verdict(int((3 + DEATH_GRACE_S) * NS)) is None
    assert watchdog.verdict(int((3 + DEATH_GRACE_S) * NS) + 1) == "exited"


def test_total_timeout_beats_everything(make: Make) -> None:
    """After the total time the trial is over, however well it goes."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 100.0)
    assert watchdog.verdict(100 * NS) is None
    assert watchdog.verdict(100 * NS + 1) == "total_timeout"


def test_a_failed_launcher_gives_the_others_their_grace(make: Make) -> None:
    """One of several launchers that ends with an error ends the trial, as a dead rank does."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 1.0)
    watchdog.note_launchers(True, False, 2 * NS)
    assert watchdog.failed_ns == 2 * NS
    for record in ranks:
        _update(record, 5.0)
    assert watchdog.verdict(int((2 + DEATH_GRACE_S) * NS)) is None
    assert watchdog.verdict(int((2 + DEATH_GRACE_S) * NS) + 1) == "exited"


def test_a_launcher_that_left_early_is_followed(make: Make) -> None:
    """Without end records the others get a bounded time; when the records come late, they keep theirs."""
    watchdog, ranks = make()
    late = int((1 + STOP_GRACE_S) * NS) + 1
    for record in ranks:
        _update(record, 1.0 + STOP_GRACE_S)
    watchdog.note_launchers(False, True, 1 * NS)
    assert watchdog.verdict(late - 1) is None
    assert watchdog.verdict(late) == "exited"
    watchdog.note_launchers(False, False, late)
    assert watchdog.verdict(late) is None


def test_nobody_is_late_because_the_machine_was_stopped(make: Make) -> None:
    """Deadlines that passed while this agent could not run hold nobody."""
    watchdog, ranks = make()
    for record in ranks:
        _update(record, 1.0)
    assert watchdog.verdict(90 * NS) == "update_timeout"
    watchdog.resumed(90 * NS, 88 * NS)
    assert watchdog.verdict(93 * NS) is None
    assert watchdog.verdict(93 * NS + 1) == "update_timeout"
    for record in ranks:
        _update(record, 187.0)
    assert watchdog.verdict(188 * NS) is None
    assert watchdog.verdict(188 * NS + 1) == "total_timeout"
