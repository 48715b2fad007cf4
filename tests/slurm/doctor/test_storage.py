"""The checks of the study's disk find what is there, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurm.doctor import peer
from slurm.doctor.mounts import Mount, judged, mount_of, parse_mounts
from slurm.doctor.storage import delay_check, existing_part, storage_checks

MOUNTS = """\
overlay / overlay rw,relatime 0 0
server:/home /home nfs4 rw,hard,vers=4.2 0 0
server:/old /old nfs rw,soft 0 0
lustre@tcp:/fs /scratch lustre rw,flock 0 0
tmpfs /dev/shm tmpfs rw 0 0
/dev/sda1 /mnt/a\\040disk ext4 rw 0 0
"""


def test_a_good_disk_passes(tmp_path: Path) -> None:
    """Every property that journals and claims rely on holds on a local disk, and nothing is left there."""
    checks = {check.name: check for check in storage_checks(tmp_path / "studies" / "new", on_cluster=False)}
    for name in ("rename", "mkdir", "append", "delay", "writable", "lock"):
        assert checks[name].status == "ok", checks[name]
    assert {"file_system", "space", "fsync"} <= set(checks)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_fails() -> None:
    """A file system without writing is told as a failure, not as an exception."""
    checks = {check.name: check for check in storage_checks(Path("/proc"), on_cluster=False)}
    assert checks["writable"].status == "fail"


def test_a_study_folder_is_made_later(tmp_path: Path) -> None:
    """What does not exist yet is judged by the folder above it."""
    assert existing_part(tmp_path / "a" / "b") == tmp_path.resolve()


@pytest.mark.parametrize(
    ("path", "kind", "status"),
    [
        ("/home/me/study", "nfs4", "ok"),
        ("/old/me", "nfs", "warn"),
        ("/scratch/me", "lustre", "ok"),
        ("/dev/shm/x", "tmpfs", "warn"),
        ("/mnt/a disk/x", "ext4", "warn"),
        ("/homes", "overlay", "warn"),
    ],
)
def test_kinds_of_file_systems(path: str, kind: str, status: str) -> None:
    """The longest mount point counts; memory, soft mounts and local disks of a cluster are drawbacks."""
    mount = mount_of(Path(path), parse_mounts(MOUNTS))
    assert mount is not None
    assert mount.kind == kind
    assert judged(mount, on_cluster=True)[0] == status


def test_a_local_disk_is_fine_on_one_machine() -> None:
    """Without a cluster nobody else has to see the disk."""
    assert judged(Mount("/", "ext4"), on_cluster=False)[0] == "ok"


def test_delays() -> None:
    """No answer is a failure, a late one a drawback."""
    assert delay_check([], "node n1").status == "fail"
    assert delay_check([0.01, 0.02], "node n1").status == "ok"
    assert delay_check([20.0, 30.0], "node n1").status == "warn"


def test_torn_contents_are_seen() -> None:
    """The reader would notice a file that is cut, mixed or empty."""
    whole = peer.payload(7)
    assert peer.is_whole(whole)
    assert not any(
        peer.is_whole(content) for content in (b"", whole[:-1], whole[:100] + peer.payload(8)[100:])
    )


def test_damaged_lines_are_seen(tmp_path: Path) -> None:
    """The reader of appended lines counts what is not as it was written."""
    lines = [peer.appended_line(0), b"damaged", peer.appended_line(2)]
    (tmp_path / "lines").write_bytes(b"\n".join(lines) + b"\n")
    assert peer.follow(tmp_path, 3) == {"seen": 3, "bad": 1}
