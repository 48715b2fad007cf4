"""Where the shipped data lie: beside the package in a wheel, at the repository root in a checkout."""

from __future__ import annotations

from pathlib import Path

_PACKAGED = Path(__file__).resolve().parents[1] / "_data" / "experience_store"
_CHECKOUT = Path(__file__).resolve().parents[2] / "experience_store"


def store_folder() -> Path:
    """Folder of the shipped experience store; the packaged copy wins.

    The folder need not exist: whoever reads a file in it reports what is missing.
    """
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT
