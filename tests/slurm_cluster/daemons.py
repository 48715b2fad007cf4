"""Start, signal and end the daemons of one cluster; what they print goes to the cluster's log folder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.slurm_cluster import sweep

_SEARCH_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class ClusterError(RuntimeError):
    """The cluster does not do what was asked; the message ends with what its daemons said."""


def wait_until(condition: Callable[[], bool], what: str, limit_s: float, pause_s: float = 0.05) -> None:
    """Poll until a condition holds.

    Raises:
        ClusterError: it did not within the limit.
    """
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise ClusterError(f"not within {limit_s:g} s: {what}")
        time.sleep(pause_s)


class Daemons:
    """The daemons by name ("slurmctld", "slurmd.n1", "munged" and so on), and the guard that outlives us."""

    def __init__(self, cluster: str, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        inherited = {name: os.environ[name] for name in ("LANG", "TZ") if name in os.environ}
        self.environment = {
            **inherited,
            "PATH": _SEARCH_PATH,
            "SLURM_CONF": str(folder / "slurm.conf"),
            sweep.MARK: cluster,
        }
        self._guard = subprocess.Popen(
            [sys.executable, "-S", "-E", "-I", str(Path(sweep.__file__)), cluster, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={"PATH": _SEARCH_PATH},
            cwd="/",
            start_new_session=True,
        )

    def start(self, name: str, command: Sequence[str]) -> None:
        """Start a daemon in the foreground mode of its own, in its own session."""
        with (self._folder / "log" / f"{name}.out").open("ab") as log:
            self._running[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd="/",
                start_new_session=True,
            )

    def runs(self, name: str) -> bool:
        """Whether a daemon was started and has not ended."""
        return name in self._running and self._running[name].poll() is None

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a daemon that runs."""
        if self.runs(name):
            self._running[name].send_signal(number)

    def kill(self, name: str) -> None:
        """End a daemon at once, as a crash of its machine would."""
        self.send(name, signal.SIGKILL)
        process = self._running.pop(name, None)
        if process is not None:
            process.wait(timeout=10)

    def terminate(self, name: str, limit_s: float = 20.0) -> None:
        """Ask a daemon to end, and wait until it has.

        Raises:
            ClusterError: it stays.
        """
        self.send(name, signal.SIGTERM)
        wait_until(lambda: not self.runs(name), f"{name} ends", limit_s, 0.02)
        self._running.pop(name, None)

    def wait_for(self, name: str, ready: Callable[[], bool], limit_s: float) -> None:
        """Wait until a daemon answers.

        Raises:
            ClusterError: it ended or never answered.
        """

        def answered() -> bool:
            if not self.runs(name):
                raise ClusterError(f"{name} ended\n{self.log(name)}")
            return ready()

        try:
            wait_until(answered, f"{name} answers", limit_s, 0.02)
        except ClusterError as error:
            raise ClusterError(f"{error}\n{self.log(name)}") from None

    def log(self, name: str) -> str:
        """The end of what a daemon printed and logged."""
        texts = [self._folder / "log" / f"{name}{suffix}" for suffix in (".out", ".log")]
        return "".join(path.read_text(errors="replace")[-20_000:] for path in texts if path.exists())

    def stop_all(self) -> list[int]:
        """End everything of the cluster, jobs included; the processes that would not go."""
        left = sweep.sweep(self._cluster)
        for process in self._running.values():
            process.wait(timeout=10)
        self._running.clear()
        return left

    def dismiss_guard(self) -> None:
        """The guard is no longer needed."""
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.communicate(b".", timeout=10)
