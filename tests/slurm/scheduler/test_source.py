from __future__ import annotations

import pytest

from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.source import StateSource
from tests.slurm.scheduler.fake_slurm import FakeSlurm, MovedClock, history_line, queue_line

FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def source(slurm: FakeSlurm, clock: MovedClock) -> StateSource:
    """A source with the default floor that asks the stand-ins."""
    return StateSource(SlurmCommands(timeout_s=5.0, clock=clock), min_poll_s=10.0, clock=clock)


def test_one_question_serves_all_jobs(source: StateSource, slurm: FakeSlurm) -> None:
    """However many jobs are watched and read, a round is one call of squeue."""
    slurm.queue(*(queue_line(str(number), "RUNNING") for number in range(1, 9)))
    for number in range(1, 9):
        source.watch(str(number))
    readings = [source.reading(str(number)) for number in range(1, 9)]
    assert len(slurm.calls()) == 1
    assert {reading.presence for reading in readings} == {"present"}
    assert [reading.facts.job_id for reading in readings if reading.facts] == [str(n) for n in range(1, 9)]


def test_nothing_is_asked_when_nothing_is_watched(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A forgotten job costs no call, and an ended one none either."""
    slurm.queue(queue_line("1", "COMPLETED", end="1800000020"))
    source.watch("1")
    assert source.reading("1").presence == "present"
    clock.move(1000)
    assert source.reading("1").facts is not None
    assert len(slurm.calls()) == 1
    source.forget("1")
    assert source.health().calls_per_minute == 0
    assert len(slurm.calls()) == 1


def test_e27_steady_state_costs_two_calls_a_minute_at_most(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """With a job running for an hour and a busy reader, the scheduler is asked twice a minute at most."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.watch("1")
    worst = 0
    for _ in range(1800):
        assert source.reading("1").presence == "present"
        worst = max(worst, source.health().calls_per_minute)
        clock.move(2)
    assert worst <= 2
    assert 50 <= len(slurm.calls()) <= 90


def test_the_age_of_an_answer_is_visible(source: StateSource, slurm: FakeSlurm, clock: MovedClock) -> None:
    """Between rounds the reading says how old it is, and when it was taken."""
    slurm.queue(queue_line("1", "RUNNING"))
    assert source.reading("1").age_s == 0.0
    clock.move(7)
    reading = source.reading("1")
    assert reading.age_s == 7.0
    assert reading.facts is not None
    assert reading.facts.as_of == clock.now - 7
    assert len(slurm.calls()) == 1


def test_a_fresh_job_brings_the_next_round_forward(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A submission is not left unanswered for the long pause of a job that runs already; the floor holds."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    clock.move(3)
    slurm.queue(queue_line("1", "RUNNING"), queue_line("2", "PENDING", reason="Priority", nodes=""))
    source.watch("2")
    assert source.reading("2").presence == "unknown"
    clock.move(7)
    reading = source.reading("2")
    assert (reading.presence, reading.start_estimate) == ("present", 1.8e9 + 10)


def test_e02_an_end_is_seen_in_one_round_without_any_file(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A job that squeue lists as ended is known as such, with exit code, at the next round."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.queue(queue_line("1", "FAILED", exit_code="256", end="1800000050", reason="NonZeroExitCode"))
    clock.move(31)
    facts = source.reading("1").facts
    assert facts is not None
    assert (facts.state, facts.exit_code, facts.ended_at) == ("FAILED", 1, 1.8e9 + 50)


def test_a_job_that_left_the_queue_is_looked_up(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Absence from squeue is no failure: scontrol may know the job still."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.queue()
    slurm.job(
        "1", "JobId=1 JobName=infrarsi-0123456789ab JobState=RUNNING Reason=None Restarts=0 NodeList=n2"
    )
    clock.move(31)
    reading = source.reading("1")
    assert (reading.presence, reading.age_s) == ("present", 0.0)
    assert reading.facts is not None
    assert (reading.facts.state, reading.facts.source, reading.facts.nodes) == (
        "RUNNING",
        "scontrol",
        ("n2",),
    )


def test_e04_absence_needs_two_rounds_and_a_minute(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A job counts as gone only after repeated answers without it, long enough after it was seen."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.queue()
    clock.move(30)
    assert source.reading("1").presence == "unknown"
    clock.move(30)
    reading = source.reading("1")
    assert (reading.presence, reading.age_s) == ("absent", 60.0)
    assert reading.facts is not None
    assert reading.facts.state == "RUNNING"


def test_a_fresh_submission_is_not_absent_before_a_minute(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A controller that lags behind a submission has a minute."""
    source.watch("1")
    for _ in range(6):
        assert source.reading("1").presence == "unknown"
        clock.move(10)
    assert source.reading("1").presence == "absent"
    slurm.queue(queue_line("1", "RUNNING"))
    clock.move(60)
    assert source.reading("1").presence == "present"


def test_a_flapping_queue_declares_nothing_dead(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A job that is missing from every other answer never counts as gone."""
    source.watch("1")
    for number in range(40):
        slurm.queue(*([queue_line("1", "RUNNING")] if number % 2 else []))
        assert source.reading("1").presence != "absent"
        clock.move(61)


def test_accounting_tells_how_a_forgotten_job_ended(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """What squeue and scontrol forgot comes from sacct, with what only squeue had said."""
    slurm.queue(queue_line("1", "RUNNING", nodes="n[1-2]", restarts=1))
    source.reading("1")
    slurm.queue()
    slurm.history(history_line("1", "TIMEOUT", nodes="", exit_code="0:0"))
    clock.move(31)
    reading = source.reading("1")
    assert reading.presence == "present"
    assert reading.facts is not None
    assert (reading.facts.state, reading.facts.source) == ("TIMEOUT", "sacct")
    assert (reading.facts.nodes, reading.facts.restarts) == (("n1", "n2"), 1)
    clock.move(600)
    source.reading("1")
    assert len(slurm.calls("sacct")) == 1


def test_a_record_that_lags_does_not_keep_a_job_alive(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Sacct says "running" for ever when the end was never recorded; the controller's word counts."""
    slurm.history(history_line("1", "RUNNING", end="Unknown"))
    source.watch("1")
    clock.move(61)
    assert source.reading("1").presence == "unknown"
    clock.move(31)
    assert source.reading("1").presence == "absent"


def test_e01_missing_accounting_is_found_out_once(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """Sacct is not asked again after it said that there is no accounting, and a person is told once."""
    for job_id in ("1", "2", "3"):
        source.watch(job_id)
    for _ in range(5):
        source.reading("1")
        clock.move(31)
    assert len(slurm.calls("sacct")) == 1
    assert source.health().accounting is False
    (notice,) = source.take_notices()
    assert "no job accounting" in notice
    assert source.take_notices() == ()


def test_accounting_known_to_be_off_is_never_asked(slurm: FakeSlurm, clock: MovedClock) -> None:
    """A source that was told so makes no call of sacct and has nothing to tell."""
    source = StateSource(SlurmCommands(clock=clock), min_poll_s=10.0, accounting=False, clock=clock)
    source.watch("1")
    for _ in range(4):
        reading = source.reading("1")
        clock.move(31)
    assert reading.presence == "absent"
    assert (slurm.calls("sacct"), source.take_notices()) == ([], ())


def test_restarts_and_suspensions_are_carried(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """A requeue shows as a count, and a suspension is remembered after the job runs again."""
    slurm.queue(queue_line("1", "SUSPENDED"))
    assert source.reading("1").was_suspended
    slurm.queue(queue_line("1", "PENDING", reason="BeginTime", restarts=1, nodes=""))
    clock.move(31)
    reading = source.reading("1")
    assert reading.facts is not None
    assert (reading.facts.state, reading.facts.restarts, reading.facts.started_at) == ("PENDING", 1, None)
    assert reading.was_suspended


def test_a_failed_node_may_still_lead_to_a_requeue(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """NODE_FAIL is not the last word while the controller knows the job; it is once it has forgotten it."""
    slurm.queue(queue_line("1", "NODE_FAIL", end="1800000020"))
    source.reading("1")
    slurm.queue(queue_line("1", "PENDING", reason="BeginTime", restarts=1, nodes=""))
    clock.move(31)
    reading = source.reading("1")
    assert reading.facts is not None
    assert reading.facts.restarts == 1
    slurm.queue(queue_line("1", "NODE_FAIL", restarts=1, end="1800000090"))
    clock.move(31)
    source.reading("1")
    slurm.queue()
    calls = len(slurm.calls())
    for _ in range(5):
        clock.move(61)
        reading = source.reading("1")
    assert (reading.presence, len(slurm.calls())) == ("present", calls + 1)


def test_another_job_with_a_reused_id_is_not_ours(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """An id that a rebuilt cluster gave to another job says nothing about ours."""
    other = queue_line("1", "RUNNING", name="someone")
    slurm.queue(other)
    slurm.job("1", "JobId=1 JobName=someone JobState=RUNNING Reason=None")
    source.watch("1", name="infrarsi-0123456789ab", submitted_at=clock.now - 1e6)
    assert source.reading("1").facts is None
    clock.move(61)
    assert source.reading("1").presence == "absent"


def test_a_round_can_be_asked_for_when_files_say_that_something_ended(
    source: StateSource, slurm: FakeSlurm, clock: MovedClock
) -> None:
    """One extra round is made at once, a second within two seconds is not."""
    slurm.queue(queue_line("1", "RUNNING"))
    source.reading("1")
    slurm.queue(queue_line("1", "COMPLETING"))
    clock.move(1)
    assert source.refresh_now("1").age_s == 1.0
    clock.move(1)
    reading = source.refresh_now("1")
    assert reading.facts is not None
    assert (reading.facts.state, len(slurm.calls())) == ("COMPLETING", 2)
    source.refresh_now("1")
    assert len(slurm.calls()) == 2


def test_extra_rounds_cannot_become_a_flood(source: StateSource, slurm: FakeSlurm, clock: MovedClock) -> None:
    """A caller that asks every second for an extra round gets fewer and fewer of them."""
    slurm.queue(queue_line("1", "COMPLETING"))
    source.reading("1")
    for _ in range(300):
        clock.move(1)
        source.refresh_now("1")
    assert len(slurm.calls()) <= 18


def test_many_other_jobs_cost_little(source: StateSource, slurm: FakeSlurm) -> None:
    """A round over ten thousand other jobs of the user takes a fraction of a second."""
    lines = [queue_line(str(number), "PENDING", name="x" * 60) for number in range(10_000)]
    slurm.queue(*lines, queue_line("99999", "RUNNING"))
    assert source.reading("99999").presence == "present"
    assert sum(1 for _ in slurm.calls()) == 1
