"""The folder that is copied into a trial and put first on the training process's PYTHONPATH."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

_FOLDER = "payload"


def payload_dir() -> Path:
    """The payload as it is installed with the product."""
    return Path(__file__).resolve().parent / _FOLDER


def copy_payload(destination: Path) -> str:
    """Copy the payload to `destination`, which must not exist yet.

    Returns:
        SHA-256 (hexadecimal) over the relative names and contents of the files copied, in order of name.

    Raises:
        FileExistsError: `destination` exists.
        OSError: a file cannot be read or written.
    """
    source = payload_dir()
    digest = hashlib.sha256()
    destination.mkdir(parents=True)
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        target = destination / relative
        target.parent.mkdir(exist_ok=True)
        shutil.copyfile(path, target)
        content = target.read_bytes()
        digest.update(f"{relative.as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()
