"""The installed version."""

from __future__ import annotations

from importlib import metadata


def product_version() -> str:
    """Version of the distribution that runs."""
    return metadata.version("infrarsi-tui")
