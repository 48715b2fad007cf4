from __future__ import annotations

import pytest

from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import SchedulerUnavailable, StateSource
from tests.slurm.scheduler.fake_slurm import FakeSlurm, MovedClock, history_line, queue_line

NAME = "infrarsi-0123456789ab"
_LIMIT_S = 1.5
REFUSED = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"


@pytest.fixture
def source(slurm: FakeSlurm, clock: MovedClock) -> StateSource:
    """A source with short time limits."""
    return StateSource(SlurmCommands(timeout_s=_LIMIT_S, clock=clock), min_poll_s=10.0, clock=clock)


def test_one_failing_question_changes_nothing(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """After a failed round the job is what it was; the age grows and the problem is told."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.fail("squeue", REFUSED)
    clock.move(31)
    reading = source.reading("1")
    assert (reading.presence, reading.age_s) == ("present", 31.0)
    assert reading.facts is not None
    assert reading.facts.state == "RUNNING"
    assert reading.problem is not None
    assert "Unable to contact" in reading.problem
    slurm.queue(queue_line("1", "RUNNING"))
    clock.move(70)
    assert (source.reading("1").age_s, source.reading("1").problem) == (0.0, None)


def test_e06_an_outage_of_a_night_declares_nothing_dead_and_floods_nobody(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Eight hours without a controller: the job stays present, calls become rare, recovery is noticed."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.fail("squeue", REFUSED)
    for _ in range(8 * 60):
        clock.move(60)
        reading = source.reading("1")
        assert reading.presence == "present"
    assert reading.age_s == 8 * 3600.0
    assert source.health().failures == len(slurm.calls()) - 1
    assert len(slurm.calls()) < 70
    slurm.queue(queue_line("1", "COMPLETED", end="1800000500"))
    clock.move(700)
    reading = source.reading("1")
    assert reading.facts is not None
    assert (reading.facts.state, source.health().failures) == ("COMPLETED", 0)


def test_a_hanging_controller_blocks_a_reader_for_one_time_limit(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Only one call waits in a round, and no extra round is made for a controller that hangs."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.hang("squeue")
    clock.move(31)
    reading = source.reading("1")
    assert reading.problem == f"squeue: timed out after {_LIMIT_S} s"
    assert len(slurm.calls()) == 2
    clock.move(5)
    assert source.refresh_now("1").presence == "present"
    assert len(slurm.calls()) == 2


def test_a_hanging_scontrol_leaves_the_job_open(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A lookup that gets no answer is no miss, and the next lookups of the round are not tried."""
    slurm.hang("scontrol")
    for job_id in ("1", "2", "3"):
        source.watch(job_id)
    for _ in range(4):
        clock.move(61)
        assert source.reading("1").presence == "unknown"
    assert len(slurm.calls("scontrol")) == len(slurm.calls("squeue"))


def test_a_site_without_scontrol_takes_longer_to_be_sure(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Where scontrol is forbidden, the queue alone decides, after five minutes."""
    slurm.fail("scontrol", "scontrol is not for users of this site")
    source.watch("1")
    for _ in range(9):
        assert source.reading("1").presence == "unknown"
        clock.move(31)
    clock.move(60)
    assert source.reading("1").presence == "absent"


def test_accounting_that_does_not_answer_gets_five_minutes(slurm: FakeSlurm, clock: MovedClock) -> None:
    """While slurmdbd is down a vanished job is not given up after a minute; later its word counts."""
    source = StateSource(SlurmCommands(clock=clock), min_poll_s=10.0, clock=clock)
    slurm.fail("sacct", "sacct: error: Problem talking to the database: Connection refused")
    source.watch("1")
    for _ in range(5):
        reading = source.reading("1")
        assert reading.presence == "unknown"
        assert "Problem talking" in (reading.problem or "")
        clock.move(31)
    slurm.history(history_line("1", "OUT_OF_MEMORY", exit_code="0:125"))
    reading = source.reading("1")
    assert reading.facts is not None
    assert (reading.presence, reading.facts.state, source.health().accounting) == (
        "present",
        "OUT_OF_MEMORY",
        True,
    )


def test_garbled_answers_count_as_failures(source: StateSource, slurm: FakeSlurm, clock: MovedClock) -> None:
    """A squeue of a future version that prints something else makes nobody lose a job."""
    slurm.answer("squeue", "{ 'jobs': [] }")
    source.watch("1")
    for _ in range(10):
        clock.move(200)
        assert source.reading("1").presence == "unknown"


def test_a_clock_set_back_does_not_silence_the_source(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """After a jump of the clock by a day the scheduler is asked again."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    clock.move(-86400)
    source.reading("1")
    assert len(slurm.calls()) == 2


def test_a_job_is_found_by_its_exact_name(source: StateSource, slurm: FakeSlurm) -> None:
    """The lookup before a second submission names every job of that name and no other."""
    slurm.queue(queue_line("5", "PENDING"), queue_line("6", "RUNNING", name=f"{NAME}c"))
    assert [facts.job_id for facts in source.find(NAME, since=1.8e9)] == ["5"]
    assert f"-n {NAME}" in slurm.calls("squeue")[-1]
    assert slurm.calls("sacct") == []


def test_a_forgotten_job_is_found_in_accounting(source: StateSource, slurm: FakeSlurm) -> None:
    """A job that ended long ago is found too."""
    slurm.history(history_line("5", "COMPLETED"), history_line("6", "FAILED", name="other"))
    assert [(facts.job_id, facts.source) for facts in source.find(NAME, since=1.8e9)] == [("5", "sacct")]


def test_no_job_of_a_name_is_an_answer(source: StateSource, slurm: FakeSlurm) -> None:
    """An empty queue without accounting means that nothing was submitted."""
    assert source.find(NAME, since=1.8e9) == []
    assert source.find(NAME, since=1.8e9) == []
    assert len(slurm.calls("sacct")) == 1


@pytest.mark.parametrize("accounting", ["empty", "disabled", "hanging"])
def test_a_queue_that_does_not_answer_proves_nothing(
    source: StateSource, slurm: FakeSlurm, accounting: str
) -> None:
    """Without the queue's answer a second submission would be a guess: accounting may lag."""
    slurm.fail("squeue", REFUSED)
    if accounting == "empty":
        slurm.history()
    elif accounting == "hanging":
        slurm.hang("sacct")
    with pytest.raises(SchedulerUnavailable, match="Unable to contact"):
        source.find(NAME, since=1.8e9)


def test_accounting_can_find_what_the_queue_cannot_tell(source: StateSource, slurm: FakeSlurm) -> None:
    """A record of the name is proof, whether the controller answers or not."""
    slurm.fail("squeue", REFUSED)
    slurm.history(history_line("5", "RUNNING", end="Unknown"))
    assert [facts.job_id for facts in source.find(NAME, since=1.8e9)] == ["5"]
