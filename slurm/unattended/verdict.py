"""What follows when the engine of an unattended study ends: a pure rule."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from engine.errors import ExitCode

RETRIES = 3
RETRY_WINDOW_S = 3600.0
RETRY_PAUSES_S = (10.0, 60.0, 300.0)
OUTAGE_PAUSES_S = (60.0, 300.0, 1500.0)
"""After a failure of disk or scheduler: these take longer to mend than a crash to happen again."""

BUSY_PAUSE_S = 15.0
BUSY_LIMIT_S = 180.0
"""A lease whose owner died on another node goes stale within this time (engine/journal/lease.py)."""

_FINAL = frozenset(
    {
        ExitCode.DONE,
        ExitCode.NO_IMPROVEMENT,
        ExitCode.USAGE,
        ExitCode.BASELINE_FAILED,
        ExitCode.INTEGRITY,
    }
)
_LEFT_OPEN = frozenset({"detached", "interrupted"})
"""Kinds of errors with which the engine says that the study is not at its end, whatever its exit code is."""


class Asked(enum.Enum):
    """Who asked the engine to end: nobody, the time limit that comes near, or somebody outside."""

    NOBODY = "nobody"
    TIME_LIMIT = "time limit"
    OUTSIDE = "outside"


class Next(enum.Enum):
    """What to do now."""

    END = "end"
    AGAIN = "again"
    HAND_OVER = "hand over"
    LEAVE = "leave"


@dataclass(frozen=True)
class Ending:
    """How the engine ended: its exit code as of Popen (negative = a signal), and the kind of its error.

    `busy_s` says for how long another owner of the study has been waited for.
    """

    returncode: int
    error_kind: str | None
    asked: Asked
    at: float
    busy_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """What to do, after which pause, why; `is_crash` = to be counted."""

    next: Next
    words: str
    pause_s: float = 0.0
    is_crash: bool = False


def judge(ending: Ending, crashes: Sequence[float]) -> Verdict:
    """What follows from how the engine ended and from its earlier crashes (unix times)."""
    code = ending.returncode
    if code in _FINAL and ending.error_kind not in _LEFT_OPEN:
        return Verdict(Next.END, _END_WORDS[ExitCode(code)])
    if ending.asked is Asked.OUTSIDE:
        return Verdict(Next.LEAVE, "ended from outside; trial jobs go on")
    if ending.asked is Asked.TIME_LIMIT:
        return Verdict(Next.HAND_OVER, "the job's time limit is near; trial jobs go on")
    if code == ExitCode.INTERRUPTED:
        paused = ending.error_kind == "paused"
        return Verdict(Next.END, "paused: a person should look" if paused else "stopped by a person")
    if code == ExitCode.INFRASTRUCTURE and ending.error_kind == "study_busy":
        if ending.busy_s < BUSY_LIMIT_S:
            return Verdict(Next.AGAIN, "another engine seems to own the study", BUSY_PAUSE_S)
        return Verdict(Next.END, "another engine works on this study")
    return _after_crash(ending, crashes)


def _after_crash(ending: Ending, crashes: Sequence[float]) -> Verdict:
    recent = [at for at in crashes if ending.at - at < RETRY_WINDOW_S]
    words = crash_words(ending.returncode)
    if len(recent) >= RETRIES:
        return Verdict(
            Next.END, f"{words}, for the {len(recent) + 1}th time within an hour: given up", is_crash=True
        )
    pauses = OUTAGE_PAUSES_S if ending.returncode == ExitCode.INFRASTRUCTURE else RETRY_PAUSES_S
    pause_s = pauses[len(recent)]
    return Verdict(Next.AGAIN, f"{words}; started again in {pause_s:.0f} s", pause_s, is_crash=True)


def crash_words(returncode: int) -> str:
    """How the engine failed."""
    if returncode == -9:
        return "the engine was killed (SIGKILL: often for memory)"
    if returncode < 0:
        return f"the engine was killed by signal {-returncode}"
    if returncode == ExitCode.INFRASTRUCTURE:
        return "the engine met a failure of disk, scheduler or node"
    return f"the engine failed with exit code {returncode}"


_END_WORDS = {
    ExitCode.DONE: "done: a verified improvement",
    ExitCode.NO_IMPROVEMENT: "done: no verified improvement",
    ExitCode.USAGE: "the command line or the task file is wrong",
    ExitCode.BASELINE_FAILED: "the unchanged job does not run",
    ExitCode.INTEGRITY: "a file of the study does not hold what it must",
}
