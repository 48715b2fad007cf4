"""The text of slurm.conf, gres.conf and slurmdbd.conf for two pretended nodes on one machine."""

from __future__ import annotations

import os
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

GPU_TYPE = "h100"
_DEVICE_NAMES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "console", "kmsg", "fuse")


@dataclass(frozen=True)
class ClusterShape:
    """What the cluster pretends to be, and how patient it is.

    memory_mib: per node; min_job_age_s: how long the controller knows an ended job; slurmd_timeout_s: a node
    that is silent for longer counts as down; message_timeout_s: how long a client waits for a reply.
    """

    nodes: int = 2
    gpus: int = 8
    cpus_per_node: int = 16
    memory_mib: int = 20_000
    accounting: bool = False
    min_job_age_s: int = 60
    slurmd_timeout_s: int = 60
    message_timeout_s: int = 5
    kill_wait_s: int = 5

    @property
    def node_names(self) -> list[str]:
        """The nodes: n1, n2 and so on."""
        return [f"n{index + 1}" for index in range(self.nodes)]


@dataclass(frozen=True)
class Layout:
    """Where things lie: a folder, its ports and a name that no other cluster has."""

    folder: Path
    name: str
    controller_port: int
    node_ports: list[int]
    database_port: int
    slurmdbd_port: int

    def __post_init__(self) -> None:
        for name in ("run", "log", "state", "database"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)

    @property
    def slurm_conf(self) -> Path:
        """The file that SLURM_CONF names."""
        return self.folder / "slurm.conf"

    @property
    def munge_socket(self) -> Path:
        """Where this cluster's munged listens."""
        return self.folder / "run" / "munge.socket"


def device_files(folder: Path, count: int) -> list[str]:
    """Character devices that stand for GPUs: regular files are refused. Nothing ever opens them.

    Own copies of /dev/null where devices can be made, else terminals, else whatever there is.

    Raises:
        RuntimeError: this machine has too few.
    """
    folder.mkdir(exist_ok=True)
    made = [folder / f"gpu{index}" for index in range(count)]
    try:
        for path in made:
            os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        return [str(path) for path in made]
    except OSError:
        terminals = [Path(f"/dev/tty{index}") for index in range(count)]
        candidates = terminals + [Path("/dev") / name for name in _DEVICE_NAMES]
        found = [str(path) for path in candidates if path.is_char_device()]
        if len(found) < count:
            raise RuntimeError(
                f"{count} character devices are needed, this machine has {len(found)}"
            ) from None
        return found[:count]


def slurm_conf(layout: Layout, shape: ClusterShape) -> str:
    """GPUs and memory are tracked; `urgent` takes nodes away from `gpu` by requeueing its jobs."""
    host = socket.gethostname().split(".")[0]
    storage = "slurmdbd" if shape.accounting else "none"
    lines = [
        f"ClusterName={layout.name}",
        f"SlurmctldHost={host}(127.0.0.1)",
        "SlurmUser=root",
        "SlurmdUser=root",
        "AuthType=auth/munge",
        f"AuthInfo=socket={layout.munge_socket}",
        "CredType=cred/munge",
        f"SlurmctldPort={layout.controller_port}",
        f"StateSaveLocation={layout.folder}/state",
        f"SlurmdSpoolDir={layout.folder}/spool.%n",
        f"SlurmctldPidFile={layout.folder}/run/slurmctld.pid",
        f"SlurmdPidFile={layout.folder}/run/slurmd.%n.pid",
        f"SlurmctldLogFile={layout.folder}/log/slurmctld.log",
        f"SlurmdLogFile={layout.folder}/log/slurmd.%n.log",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "SwitchType=switch/none",
        "MpiDefault=none",
        "MailProg=/bin/true",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "GresTypes=gpu",
        "ReturnToService=1",  # what an administrator took down stays down, what was silent comes back
        "SlurmdParameters=config_overrides",
        "SchedulerType=sched/backfill",
        "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1",
        "PreemptType=preempt/partition_prio",
        "PreemptMode=REQUEUE",
        "JobRequeue=1",
        f"AccountingStorageType=accounting_storage/{storage}",
        "JobAcctGatherType=jobacct_gather/linux",
        "JobAcctGatherFrequency=task=2",
        "JobAcctGatherParams=OverMemoryKill",
        "JobCompType=jobcomp/filetxt",
        f"JobCompLoc={layout.folder}/log/jobcomp.log",
        f"MinJobAge={shape.min_job_age_s}",
        f"MessageTimeout={shape.message_timeout_s}",
        f"SlurmdTimeout={shape.slurmd_timeout_s}",
        "SlurmctldTimeout=30",
        "InactiveLimit=0",
        f"KillWait={shape.kill_wait_s}",
        "CompleteWait=0",
        *_storage_lines(layout, shape),
        *_node_lines(layout, shape, host),
        "PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1",
        "PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF",
    ]
    return "\n".join(lines) + "\n"


def _storage_lines(layout: Layout, shape: ClusterShape) -> list[str]:
    if not shape.accounting:
        return []
    return [
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={layout.slurmdbd_port}",
        f"AccountingStoragePass={layout.munge_socket}",
        "AccountingStorageTRES=gres/gpu",
    ]


def _node_lines(layout: Layout, shape: ClusterShape, host: str) -> list[str]:
    return [
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={shape.cpus_per_node} "
        f"RealMemory={shape.memory_mib} Gres=gpu:{GPU_TYPE}:{shape.gpus} State=UNKNOWN"
        for name, port in zip(shape.node_names, layout.node_ports, strict=True)
    ]


def gres_conf(shape: ClusterShape, devices: list[str]) -> str:
    """gres.conf: one line a device, because the names follow no pattern everywhere."""
    names = ",".join(shape.node_names)
    return "".join(f"NodeName={names} Name=gpu Type={GPU_TYPE} File={device}\n" for device in devices)


def slurmdbd_conf(layout: Layout) -> str:
    """slurmdbd.conf for the database of this folder."""
    return "\n".join(
        [
            "AuthType=auth/munge",
            f"AuthInfo=socket={layout.munge_socket}",
            "DbdHost=localhost",
            "DbdAddr=127.0.0.1",
            f"DbdPort={layout.slurmdbd_port}",
            "SlurmUser=root",
            f"LogFile={layout.folder}/log/slurmdbd.log",
            f"PidFile={layout.folder}/run/slurmdbd.pid",
            "CommitDelay=0",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={layout.database_port}",
            "StorageUser=slurm",
            "StoragePass=slurm",
            "StorageLoc=slurm",
            "",
        ]
    )
