"""Writing on shared disks: a file is complete or absent, whatever dies in between."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.errors import DiskFullError, InfrastructureError


@contextlib.contextmanager
def explain_disk_errors(path: Path) -> Iterator[None]:
    """Turn an OSError of a write into an error that names the path and the next step."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(
                "no space left to write",
                file=str(path),
                hint="free some space or raise the quota, then run `infrarsi resume` on the study",
            ) from error
        raise InfrastructureError(
            f"cannot write: {error.strerror or error}", file=str(path), hint="check the folder's permissions"
        ) from error


def write_text(path: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a whole file through a temporary name, fsync, rename.

    Raises:
        DiskFullError: no space is left.
        InfrastructureError: the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with explain_disk_errors(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            temporary.rename(path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write JSON durably; NaN and infinities are refused."""
    write_text(path, json.dumps(value, indent=1, allow_nan=False) + "\n")


def sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
