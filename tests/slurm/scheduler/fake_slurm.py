"""Stand-ins for Slurm's programs, put on PATH and driven by files, and a clock that a test moves."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

_PROGRAM = """#!/bin/sh
me=${0##*/}
cd '%s' || exit 99
printf '%%s\\n' "$me $*" >> calls
env > "$me.environment"
if [ -e "$me.hang" ]; then sleep 600 & wait; fi
for last; do :; done
if [ "$me" = scontrol ] && [ -e "scontrol.$last.out" ]; then cat "scontrol.$last.out"; exit 0; fi
[ -e "$me.err" ] && cat "$me.err" >&2
[ -e "$me.out" ] && cat "$me.out"
exit "$(cat "$me.rc")"
"""
PROGRAMS = ("squeue", "scontrol", "sacct")


class FakeSlurm:
    """A scheduler that says what the test wrote down; at first it knows no job and has no accounting."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        folder.mkdir()
        for program in PROGRAMS:
            path = folder / program
            path.write_text(_PROGRAM % folder)
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
        self.queue()
        self.fail("scontrol", "slurm_load_jobs error: Invalid job id specified")
        self.fail("sacct", "Slurm accounting storage is disabled")

    def queue(self, *lines: str) -> None:
        """What squeue lists from now on."""
        self.answer("squeue", *lines)

    def history(self, *lines: str) -> None:
        """What accounting knows from now on."""
        self.answer("sacct", *lines)

    def job(self, job_id: str, line: str) -> None:
        """What scontrol knows of one job from now on."""
        (self._folder / f"scontrol.{job_id}.out").write_text(f"{line}\n")

    def answer(self, program: str, *lines: str) -> None:
        """Let a program work again and say this."""
        self._set(program, out="".join(f"{line}\n" for line in lines))

    def fail(self, program: str, words: str, *, returncode: int = 1, out: str = "") -> None:
        """Let a program fail with these words."""
        self._set(program, out=out, err=f"{words}\n", returncode=returncode)

    def hang(self, program: str) -> None:
        """Let a program never end."""
        (self._folder / f"{program}.hang").touch()

    def remove(self, program: str) -> None:
        """Take a program away."""
        (self._folder / program).unlink()

    def calls(self, program: str = "") -> list[str]:
        """The calls so far, the oldest first."""
        file = self._folder / "calls"
        lines = file.read_text().splitlines() if file.exists() else []
        return [line for line in lines if line.startswith(program)]

    def environment(self, program: str) -> dict[str, str]:
        """The environment that a program got with its last call."""
        lines = (self._folder / f"{program}.environment").read_text().splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    def _set(self, program: str, *, out: str = "", err: str = "", returncode: int = 0) -> None:
        (self._folder / f"{program}.hang").unlink(missing_ok=True)
        (self._folder / f"{program}.out").write_text(out)
        (self._folder / f"{program}.err").write_text(err)
        (self._folder / f"{program}.rc").write_text(str(returncode))


class MovedClock:
    """Unix time that stands still until a test moves it."""

    def __init__(self, start: float = 1_800_000_000.0) -> None:
        self.now = start

    def __call__(self) -> float:
        return self.now

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds


def queue_line(
    job_id: str,
    state: str,
    *,
    reason: str = "None",
    nodes: str = "n1",
    restarts: int = 0,
    exit_code: str = "0",
    submit: str = "1800000000",
    start: str = "1800000010",
    end: str = "N/A",
    limit: str = "10:00",
    name: str = "infrarsi-0123456789ab",
) -> str:
    """A line as squeue prints it for `queue_argv`."""
    return "|".join((job_id, state, reason, nodes, str(restarts), exit_code, submit, start, end, limit, name))


def history_line(
    job_id: str,
    state: str,
    *,
    exit_code: str = "0:0",
    reason: str = "None",
    nodes: str = "n1",
    submit: str = "1800000000",
    start: str = "1800000010",
    end: str = "1800000020",
    limit: str = "00:10:00",
    suspended: str = "00:00:00",
    name: str = "infrarsi-0123456789ab",
) -> str:
    """A line as sacct prints it for `history_argv`."""
    return "|".join((job_id, state, exit_code, reason, nodes, submit, start, end, limit, suspended, name))
