"""Files that are complete or absent, whatever dies in between."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def _write_temporary(path: Path, value: Any, *, sync: bool) -> Path:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            stream.write(json.dumps(value) + "\n")
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
    except OSError:
        temporary.unlink()  # on a full disk it only takes room
        raise
    return temporary


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError:
        return  # some file systems cannot sync a folder; the rename is still atomic
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Write a file through a temporary name: fsync, rename, fsync of the folder."""
    _write_temporary(path, value, sync=True).rename(path)
    _sync_folder(path.parent)


def touch_json(path: Path, value: Any) -> None:
    """Replace a file atomically without waiting for the disk: for heartbeats."""
    _write_temporary(path, value, sync=False).rename(path)


def claim_json(path: Path, value: Any) -> bool:
    """Write a file only if it does not exist; False when another process was first (works on NFS)."""
    temporary = _write_temporary(path, value, sync=True)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    _sync_folder(path.parent)
    return True
