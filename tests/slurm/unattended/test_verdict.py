"""What follows when the engine of an unattended study ends."""

from __future__ import annotations

import pytest

from engine.errors import ExitCode
from slurm.unattended.verdict import BUSY_LIMIT_S, RETRIES, RETRY_WINDOW_S, Asked, Ending, Next, judge

NOW = 1_800_000_000.0


def _ending(code: int, kind: str | None = None, asked: Asked = Asked.NOBODY, busy_s: float = 0.0) -> Ending:
    return Ending(code, kind, asked, NOW, busy_s)


@pytest.mark.parametrize("code", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("asked", list(Asked))
def test_results_end_it(code: int, asked: Asked) -> None:
    """A result of the study ends the job, also when Slurm wanted the job to end at the same moment."""
    assert judge(_ending(code, asked=asked), ()).next is Next.END


@pytest.mark.parametrize("code", [70, -9, -11, 3, 127])
def test_crashes_are_repeated_three_times_an_hour(code: int) -> None:
    """A crash is repeated after a pause that grows; the fourth within an hour ends the job."""
    crashes: list[float] = []
    pauses = []
    for number in range(RETRIES):
        verdict = judge(_ending(code), crashes)
        assert (verdict.next, verdict.is_crash) == (Next.AGAIN, True)
        pauses.append(verdict.pause_s)
        crashes.append(NOW - 10 + number)
    assert pauses == sorted(set(pauses))
    assert judge(_ending(code), crashes).next is Next.END


def test_old_crashes_are_forgotten() -> None:
    """Crashes more than an hour ago do not count."""
    old = [NOW - RETRY_WINDOW_S - number for number in range(1, 10)]
    assert judge(_ending(70), old).next is Next.AGAIN


def test_who_asked_decides() -> None:
    """At a time limit the job goes on by itself; what a person or Slurm ends does not come back by itself."""
    assert judge(_ending(130, "detached", Asked.TIME_LIMIT), ()).next is Next.HAND_OVER
    assert judge(_ending(-9, None, Asked.TIME_LIMIT), ()).next is Next.HAND_OVER
    assert judge(_ending(130, "detached", Asked.OUTSIDE), ()).next is Next.LEAVE
    assert judge(_ending(130, "interrupted"), ()).next is Next.END
    assert judge(_ending(130, "paused"), ()).next is Next.END


def test_a_detached_engine_is_no_finished_study() -> None:
    """An engine that says that it detached has no result, whatever its exit code is."""
    assert judge(_ending(int(ExitCode.DONE), "detached", Asked.TIME_LIMIT), ()).next is Next.HAND_OVER


def test_a_lease_of_a_dead_engine_is_waited_for() -> None:
    """After a node failure the old lease looks alive for a while; then somebody else really has the study."""
    assert judge(_ending(3, "study_busy"), ()).next is Next.AGAIN
    assert not judge(_ending(3, "study_busy"), ()).is_crash
    assert judge(_ending(3, "study_busy", busy_s=BUSY_LIMIT_S), ()).next is Next.END
