"""A real Slurm with pretended nodes on this machine: own folder, ports, munge and, where wanted, database."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.slurm_cluster import database, sweep
from tests.slurm_cluster.configuration import (
    ClusterShape,
    Layout,
    device_files,
    gres_conf,
    slurm_conf,
)
from tests.slurm_cluster.daemons import ClusterError, Daemons, wait_until
from tests.slurm_cluster.ports import free_ports, listens

INSTALL = "apt-get install --no-install-recommends slurm-wlm slurmdbd mariadb-server munge"
_PROGRAMS = ("slurmctld", "slurmd", "munged", "slurmdbd", "mariadbd")
_SYSTEM_FOLDERS = ("/usr/sbin", "/sbin")
_FIELDS = ("%i", "%j", "%T", "%r", "%N", "%P", "%u")
_NAMES = ("id", "name", "state", "reason", "nodes", "partition", "user")
_QUEUE_LIMIT_S = 90.0  # a step that ended while the controller was away says so after a minute
_HURRY_PAUSE_S = 10.0


def available() -> str | None:
    """Why no cluster can be brought up here; None where it can."""
    if os.geteuid() != 0:
        return "the daemons need root"
    path = os.pathsep.join([os.environ.get("PATH", ""), *_SYSTEM_FOLDERS])
    missing = [name for name in _PROGRAMS if shutil.which(name, path=path) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


class SlurmCluster:
    """Slurm on `nodes` pretended nodes with `gpus` pretended GPUs each.

    `folder` is made, readable for everybody, and removed again; its path has to be short, for the sockets.
    Further arguments are those of `ClusterShape`. Partitions: `gpu`, and `urgent` that takes nodes from it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        accounting: bool,
        nodes: int = 2,
        gpus: int = 8,
        cpus_per_node: int = 16,
        **shape: int,
    ) -> None:
        self.shape = ClusterShape(
            nodes=nodes, gpus=gpus, cpus_per_node=cpus_per_node, accounting=accounting, **shape
        )
        self.folder = folder
        self.name = f"t{uuid.uuid4().hex[:10]}"
        self._layout: Layout | None = None
        self._daemons: Daemons | None = None
        self._hurried: dict[str, float] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def accounting(self) -> bool:
        """Whether sacct answers."""
        return self.shape.accounting

    @property
    def daemons(self) -> Daemons:
        """The daemons of a started cluster."""
        if self._daemons is None:
            raise ClusterError("the cluster was not started")
        return self._daemons

    def start(self) -> None:
        """Bring everything up and wait until all nodes are idle; a few seconds.

        Raises:
            ClusterError: a daemon does not come up; nothing of the cluster is left then.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        controller, slurmdbd, storage, *nodes = free_ports(3 + self.shape.nodes)
        self._layout = Layout(self.folder, self.name, controller, nodes, storage, slurmdbd)
        self._daemons = Daemons(self.name, self.folder)
        atexit.register(self.stop)
        try:
            self._write_configuration(self._layout)
            self._start_munge(self._layout)
            if self.accounting:
                database.start(self.daemons, self._layout)
            self._launch_controller()
            for name in self.shape.node_names:
                self.daemons.start(f"slurmd.{name}", ["slurmd", "-D", "-N", name])
            self.wait_for_nodes()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process of the cluster and of its jobs, and remove the folder; more than once is fine.

        Raises:
            ClusterError: a process would not go.
        """
        atexit.unregister(self.stop)
        if self._daemons is None:
            return
        left = self._daemons.stop_all()
        self._daemons.dismiss_guard()
        self._daemons = None
        shutil.rmtree(self.folder, ignore_errors=True)
        if left:
            raise ClusterError(f"processes of the cluster are left: {left}")

    def environment(self) -> dict[str, str]:
        """Variables for clients of this cluster: the caller's, without those of another job."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
        return {**kept, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, timeout_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """Run a client program; never raises for its exit code."""
        return subprocess.run(
            command,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def jobs(self) -> list[dict[str, str]]:
        """Every job that the controller remembers: id, name, state, reason, nodes, partition, user."""
        answer = self.run("squeue", "-h", "-t", "all", "-o", "\t".join(_FIELDS))
        if answer.returncode:
            raise ClusterError(f"squeue: {answer.stderr.strip()}")
        return [dict(zip(_NAMES, line.split("\t"), strict=True)) for line in answer.stdout.splitlines()]

    def ended_jobs(self) -> list[dict[str, str]]:
        """Every run of a job that has ended, in both flavours and for ever: JobId, Name, JobState etc."""
        path = self.folder / "log" / "jobcomp.log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [dict(word.split("=", 1) for word in line.split() if "=" in word) for line in lines]

    def processes(self, node: str | None = None) -> list[int]:
        """Process ids of the daemons, the step daemons and the jobs; with `node`, those of that node."""
        return sweep.processes_of(self.name, node)

    def daemon_log(self, name: str) -> str:
        """The end of a daemon's log: slurmctld, slurmd.n1, slurmdbd, mariadbd, munged."""
        return self.daemons.log(name)

    # --- the controller -------------------------------------------------------------------------------------

    def kill_controller(self, *, saved: bool = True) -> None:
        """The controller goes away: commands fail, jobs run on.

        A real Slurm saves its state every few seconds only: without `saved`, the jobs of the last seconds are
        forgotten as after a crash of the machine.
        """
        if saved:
            self.daemons.terminate("slurmctld")
        else:
            self.daemons.kill("slurmctld")

    def start_controller(self) -> None:
        """The controller comes back with the state it had saved."""
        self._launch_controller()

    def pause_controller(self) -> None:
        """The controller stays, and answers nobody."""
        self.daemons.send("slurmctld", signal.SIGSTOP)

    def continue_controller(self) -> None:
        """The controller answers again."""
        self.daemons.send("slurmctld", signal.SIGCONT)

    # --- accounting -----------------------------------------------------------------------------------------

    def kill_accounting(self) -> None:
        """The accounting daemon dies: sacct fails, everything else works."""
        self.daemons.kill("slurmdbd")

    def start_accounting(self) -> None:
        """The accounting daemon comes back."""
        if self._layout is not None:
            database.start_slurmdbd(self.daemons, self._layout)

    # --- nodes ----------------------------------------------------------------------------------------------

    def node_states(self) -> dict[str, str]:
        """Node → state in lower case, as `sinfo` prints it ("idle", "mixed", "down*", …)."""
        answer = self.run("sinfo", "-h", "-N", "-o", "%N %T")
        return dict(line.split() for line in answer.stdout.splitlines())

    def wait_for_nodes(self, limit_s: float = 60.0) -> None:
        """Wait until every node can take jobs.

        Raises:
            ClusterError: one cannot.
        """
        usable = {"idle", "mixed", "allocated", "completing"}

        def ready() -> bool:
            states = self.node_states()
            return len(states) == self.shape.nodes and usable.issuperset(states.values())

        try:
            wait_until(ready, "all nodes are up", limit_s)
        except ClusterError as error:
            raise ClusterError(f"{error}: {self.node_states()}\n{self.daemon_log('slurmctld')}") from None

    def node_down(self, name: str) -> None:
        """The administrator takes a node down: its jobs are requeued, or end as NODE_FAIL."""
        self._scontrol("update", f"nodename={name}", "state=down", "reason=drill")

    def node_up(self, name: str) -> None:
        """A node that was down takes jobs again."""
        self._scontrol("update", f"nodename={name}", "state=resume")
        wait_until(lambda: not self.node_states()[name].startswith("down"), f"{name} is back", 30.0)

    def kill_node(self, name: str) -> None:
        """A node loses its power: daemon and jobs are gone; noticed after `slurmd_timeout_s`."""
        self.daemons.kill(f"slurmd.{name}")
        sweep.kill(lambda: self.processes(name))

    def start_node(self, name: str) -> None:
        """A node boots again."""
        if not self.daemons.runs(f"slurmd.{name}"):
            self.daemons.start(f"slurmd.{name}", ["slurmd", "-D", "-N", name])

    # --- jobs -----------------------------------------------------------------------------------------------

    def hurry_requeued(self) -> None:
        """Let requeued jobs start soon: Slurm makes them wait for two minutes, and has no setting for it.

        Works on jobs whose earlier run is wholly gone: call it again while waiting.
        """
        for job in self.jobs():
            # Within the second of its requeue a job would fail: "Job credential revoked".
            due = time.monotonic() >= self._hurried.get(job["id"], 0.0) + _HURRY_PAUSE_S
            if job["state"] == "PENDING" and job["reason"] == "BeginTime" and due:
                self._hurried[job["id"]] = time.monotonic()
                self.run("scontrol", "update", f"jobid={job['id']}", "starttime=now+3")

    def wait_for_restart(self, job: str, limit_s: float = 60.0) -> None:
        """Wait until a requeued job runs again, without the two minutes.

        Raises:
            ClusterError: it does not.
        """

        def runs() -> bool:
            self.hurry_requeued()
            return any(each["id"] == job and each["state"] == "RUNNING" for each in self.jobs())

        wait_until(runs, f"job {job} runs again", limit_s, 0.2)

    def heal(self) -> None:
        """After a test: controller and nodes answer again, and no job is left.

        Raises:
            ClusterError: that cannot be reached.
        """
        self.continue_controller()
        if not self.daemons.runs("slurmctld"):
            self.start_controller()
        if self.accounting and not self.daemons.runs("slurmdbd"):
            self.start_accounting()
        for name in self.shape.node_names:
            self.start_node(name)
        self._end_jobs()
        for name, state in self.node_states().items():
            if state.startswith(("down", "drain")):
                self.node_up(name)
        self.wait_for_nodes()

    def _end_jobs(self) -> None:
        def open_jobs() -> list[str]:
            waiting = (
                "PENDING",
                "RUNNING",
                "COMPLETING",
                "SUSPENDED",
                "CONFIGURING",
                "REQUEUED",
                "REQUEUE_HOLD",
            )
            return [job["id"] for job in self.jobs() if job["state"] in waiting]

        def all_ended() -> bool:
            left = open_jobs()
            if left:
                self.run("scancel", *left)
            return not left

        wait_until(all_ended, "all jobs end", _QUEUE_LIMIT_S, 0.2)

    def _scontrol(self, *words: str) -> None:
        answer = self.run("scontrol", *words)
        if answer.returncode:
            raise ClusterError(
                f"scontrol {' '.join(words)}: {answer.stderr.strip() or answer.stdout.strip()}"
            )

    def _write_configuration(self, layout: Layout) -> None:
        devices = device_files(self.folder / "dev", self.shape.gpus)
        layout.slurm_conf.write_text(slurm_conf(layout, self.shape))
        (self.folder / "gres.conf").write_text(gres_conf(self.shape, devices))

    def _start_munge(self, layout: Layout) -> None:
        key = self.folder / "run" / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        run, log = self.folder / "run", self.folder / "log"
        options = [f"--key-file={key}", f"--socket={layout.munge_socket}", f"--pid-file={run}/munged.pid"]
        options += [f"--log-file={log}/munged.log", f"--seed-file={run}/munged.seed"]
        self.daemons.start("munged", ["munged", "--foreground", "--force", *options])
        self.daemons.wait_for("munged", layout.munge_socket.is_socket, 20.0)

    def _launch_controller(self) -> None:
        layout = self._layout
        if layout is None:
            raise ClusterError("the cluster was not started")
        self.daemons.start("slurmctld", ["slurmctld", "-D"])
        self.daemons.wait_for("slurmctld", lambda: listens(layout.controller_port), 30.0)
        self.daemons.wait_for("slurmctld", lambda: self.run("scontrol", "ping").returncode == 0, 30.0)
