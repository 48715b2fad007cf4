"""Trees of files: scan with content hashes, copy by reflink where the file system can."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from engine.schema.base import Record

FICLONE = 0x40049409
"""ioctl that lets two files share their blocks until one of them changes (btrfs, xfs, bcachefs)."""
_NO_REFLINK = (
    errno.EOPNOTSUPP,
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOTTY,
    errno.ENOSYS,
    errno.EPERM,
    errno.ETXTBSY,
)


class FileEntry(Record):
    """One file or symbolic link of a tree.

    mode holds the permission bits; sha256 is that of the content, for a link of its target's text.
    """

    kind: Literal["file", "link"]
    mode: int
    size: int
    sha256: str
    target: str | None = None


Manifest = dict[str, FileEntry]
"""Path relative to the tree's root → entry."""


def read_entry(path: Path) -> FileEntry | None:
    """The entry of a path; None for folders, pipes, sockets and devices.

    Raises:
        OSError: it is not there or not readable.
    """
    status = path.lstat()
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        raw = os.fsencode(os.readlink(path))
        digest = hashlib.sha256(raw).hexdigest()
        shown = raw.decode("utf-8", "backslashreplace")
        return FileEntry(kind="link", mode=0o777, size=len(raw), sha256=digest, target=shown)
    if not stat.S_ISREG(status.st_mode):
        return None
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(kind="file", mode=mode, size=status.st_size, sha256=digest)


def scan(root: Path) -> Manifest:
    """The manifest of everything below a folder; links are not followed.

    Raises:
        OSError: something is not readable.
    """
    found: Manifest = {}
    for folder, folders, files in os.walk(root, onerror=_raise):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in files + links:
            path = Path(folder, name)
            entry = read_entry(path)
            if entry is not None:
                found[path.relative_to(root).as_posix()] = entry
    return dict(sorted(found.items()))


def copy_tree(source: Path, destination: Path, paths: Iterable[str]) -> None:
    """Copy files and links with their modes and times; never a hard link.

    Raises:
        OSError: something cannot be read or written.
    """
    for path in paths:
        target = destination / path
        target.parent.mkdir(parents=True, exist_ok=True)
        copy_file(source / path, target)


def copy_file(source: Path, destination: Path) -> None:
    """Copy one file, sharing its blocks where the file system can, or one symbolic link as a link.

    Raises:
        OSError: it cannot be read or written.
    """
    if source.is_symlink():
        destination.symlink_to(os.readlink(source))
        return
    with source.open("rb") as reader, destination.open("xb") as writer:
        try:
            fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
        except OSError as error:
            if error.errno not in _NO_REFLINK:
                raise
            shutil.copyfileobj(reader, writer, 1 << 20)
        status = os.fstat(reader.fileno())
    destination.chmod(stat.S_IMODE(status.st_mode))
    with contextlib.suppress(OSError):
        os.utime(destination, ns=(status.st_atime_ns, status.st_mtime_ns))


def remove_tree(root: Path) -> None:
    """Remove a folder, read-only parts included; links are removed, not followed. Missing is fine."""
    if root.is_symlink() or not root.exists():
        return
    for folder, _, _ in os.walk(root):
        with contextlib.suppress(OSError):
            Path(folder).chmod(0o700)
    shutil.rmtree(root, ignore_errors=True)


def is_utf8(path: str) -> bool:
    """Whether a path as the system reports it is UTF-8."""
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def leads_out(path: str, target: str) -> bool:
    """Whether a link at `path` with this text leaves the tree, by its words alone."""
    if os.path.isabs(target):
        return True
    joined = os.path.normpath(os.path.join(os.path.dirname(path), target))
    return joined == ".." or joined.startswith("../")


def _raise(error: OSError) -> None:
    raise error
