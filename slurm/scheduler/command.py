"""Run Slurm's programs: always with a time limit, never with the caller's job variables, and on record."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from slurm.agent.environment import scrubbed

# Where the cluster is and who we are: without these the programs do not find or do not trust it.
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
# The user's own defaults for these programs would filter or reorder what we read, or ask questions.
_PREFIXES = ("SQUEUE_", "SACCT_", "SCONTROL_", "SINFO_", "SCANCEL_", "SALLOC_", "SLURMD_")
# The devices of this machine mean nothing in a job on another one.
_NAMES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL")
# Unix seconds: no hour exists twice. Not for sbatch, whose SLURM_* variables reach the job.
_QUERY_SETTINGS = {"SLURM_TIME_FORMAT": "%s"}
_QUERIES = frozenset({"squeue", "scontrol", "sacct"})
_STDERR_IN_LOG = 300


@dataclasses.dataclass(frozen=True, slots=True)
class CommandResult:
    """What one call gave; `returncode` is None where the program gave no answer, `problem` says why."""

    argv: tuple[str, ...]
    returncode: int | None
    stdout: str
    stderr: str
    duration_s: float
    problem: str | None = None

    @property
    def ok(self) -> bool:
        """Whether the program ran and exited with 0."""
        return self.returncode == 0

    @property
    def complaint(self) -> str | None:
        """One line on what went wrong, in the program's own words if it had some; None when all is well."""
        if self.ok:
            return None
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        words = self.problem or (lines[-1] if lines else f"exit code {self.returncode}")
        return f"{self.argv[0]}: {words.removeprefix(f'{self.argv[0]}: ')}"


def caller_environment() -> dict[str, str]:
    """The environment for Slurm's programs: without keys, without the variables of a job we may sit in."""
    environment = {
        name: value
        for name, value in scrubbed(os.environ).items()
        if not name.startswith(_PREFIXES) and name not in _NAMES
    }
    for name in _KEPT:
        if name in os.environ:
            environment[name] = os.environ[name]
    return environment


class SlurmCommands:
    """Runs Slurm's programs one at a time.

    Args:
        log: A JSON-lines file that gets every call; None keeps no record.
        timeout_s: Seconds that a program may take.
        clock: Unix time, seconds.
    """

    def __init__(
        self, log: Path | None = None, *, timeout_s: float = 20.0, clock: Callable[[], float] = time.time
    ) -> None:
        self._log = log
        self._timeout_s = timeout_s
        self._clock = clock
        self._calls: collections.deque[float] = collections.deque(maxlen=1000)

    def run(self, *argv: str, timeout_s: float | None = None) -> CommandResult:
        """Run a program to its end or to its time limit; a failure is a value.

        Args:
            argv: The program (looked up on PATH) and its arguments.
            timeout_s: A limit for this call, seconds; None means the usual one.
        """
        at = self._clock()
        self._calls.append(at)
        started = time.monotonic()
        limit_s = self._timeout_s if timeout_s is None else timeout_s
        returncode, stdout, stderr, problem = _execute(argv, _environment_for(argv[0]), limit_s)
        result = CommandResult(argv, returncode, stdout, stderr, time.monotonic() - started, problem)
        self._record(at, result)
        return result

    def recent_calls(self, seconds: float = 60.0) -> int:
        """How many calls began within the last `seconds`."""
        since = self._clock() - seconds
        return sum(1 for at in tuple(self._calls) if at > since)

    def _record(self, at: float, result: CommandResult) -> None:
        if self._log is None:
            return
        line = json.dumps(
            {
                "at": round(at, 3),
                "argv": result.argv,
                "duration_s": round(result.duration_s, 3),
                "returncode": result.returncode,
                "problem": result.problem,
                "stderr": result.stderr[:_STDERR_IN_LOG],
            }
        )
        # A full disk must not stop us from looking after jobs.
        with contextlib.suppress(OSError):
            descriptor = os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, f"{line}\n".encode())
            finally:
                os.close(descriptor)


def shell_line(argv: tuple[str, ...]) -> str:
    """A call as one would type it."""
    return shlex.join(argv)


def _environment_for(program: str) -> dict[str, str]:
    environment = caller_environment()
    if os.path.basename(program) in _QUERIES:
        environment.update(_QUERY_SETTINGS)
    return environment


def _execute(
    argv: tuple[str, ...], environment: dict[str, str], limit_s: float
) -> tuple[int | None, str, str, str | None]:
    """Return code, stdout, stderr, problem. A session of its own: a time-out ends what a wrapper started."""
    try:
        process = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )
    except FileNotFoundError:
        return None, "", "", "not found"
    except OSError as error:
        return None, "", "", f"cannot be started: {error.strerror or error}"
    try:
        stdout, stderr = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        stdout, stderr = _end(process)
        return None, stdout, stderr, f"timed out after {limit_s:g} s"
    except BaseException:
        _end(process)
        raise
    return process.returncode, stdout, stderr, None


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        return process.communicate(timeout=2.0)
    except subprocess.TimeoutExpired:
        # Stuck in the kernel (a dead network disk): leave it, it holds nothing of ours but two pipes.
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        return "", ""
