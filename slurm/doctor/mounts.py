"""Which file system a path lies on, and what is known about its kind. Standard library only."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Optional

from slurm.doctor.check import ASK_A_NODE

_SHARED = {
    "nfs": "NFS: other nodes see changes some seconds late",
    "nfs4": "NFS: other nodes see changes some seconds late",
    "lustre": "Lustre: seen by all nodes; many small files are slow, start-up of Python is too",
    "gpfs": "GPFS (Spectrum Scale): seen by all nodes",
    "beegfs": "BeeGFS: seen by all nodes",
    "fhgfs": "BeeGFS: seen by all nodes",
    "ceph": "CephFS: seen by all nodes",
    "fuse.ceph-fuse": "CephFS: seen by all nodes",
    "wekafs": "Weka: seen by all nodes",
    "panfs": "PanFS: seen by all nodes",
    "pvfs2": "OrangeFS: seen by all nodes",
    "afs": "AFS: jobs may lack the ticket to write",
    "cifs": "SMB: renames and appends may not be atomic",
    "fuse.sshfs": "sshfs: too slow and too fragile for studies",
    "virtiofs": "a folder of the host of this virtual machine",
    "9p": "a folder of the host of this virtual machine",
}
_FRAGILE = ("afs", "cifs", "fuse.sshfs")
_IN_MEMORY = ("tmpfs", "ramfs")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclasses.dataclass(frozen=True)
class Mount:
    """A mounted file system: where, of which kind, with which options."""

    point: str
    kind: str
    options: tuple[str, ...] = ()

    @property
    def is_shared(self) -> bool:
        """Whether other nodes are likely to see it."""
        return self.kind in _SHARED and self.kind not in ("virtiofs", "9p")


def parse_mounts(text: str) -> list[Mount]:
    """The lines of /proc/mounts."""
    mounts = []
    for line in text.splitlines():
        fields = line.split(" ")
        if len(fields) >= 4:
            mounts.append(Mount(_unescaped(fields[1]), fields[2], tuple(fields[3].split(","))))
    return mounts


def mount_of(path: Path, mounts: list[Mount]) -> Optional[Mount]:  # noqa: UP045
    """The mount that a resolved path lies on: the longest mount point above it, the last one of equals."""
    above = [mount for mount in mounts if _is_below(str(path), mount.point)]
    return max(reversed(above), key=lambda mount: len(mount.point), default=None)


def judged(mount: Mount, *, on_cluster: bool) -> tuple[str, str, str]:
    """Status, meaning and hint for a study on this file system."""
    known = _SHARED.get(mount.kind)
    if mount.kind in _IN_MEMORY:
        return (
            "warn",
            "memory of this machine: gone after a restart, and no other node sees it",
            "put studies on a disk that all nodes share",
        )
    if mount.kind in _FRAGILE:
        return "warn", known or "", "put studies on the cluster's parallel file system or NFS"
    if mount.kind.startswith("nfs") and "soft" in mount.options:
        return (
            "warn",
            "NFS mounted `soft`: writes can be lost when the server is slow",
            "ask the site for a `hard` mount, or use another file system",
        )
    if known is not None and mount.is_shared:
        return "ok", known, ""
    if on_cluster:
        return (
            "warn",
            f"{known or 'a disk of this machine'}: other nodes may not see it",
            f"{ASK_A_NODE}; else put studies on a shared disk",
        )
    return "ok", known or "a disk of this machine", ""


def _is_below(path: str, point: str) -> bool:
    return point == "/" or path == point or path.startswith(point.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match.group(1), 8)), text)
