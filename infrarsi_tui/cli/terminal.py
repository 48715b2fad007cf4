"""Checks of this process and its terminal."""

from __future__ import annotations

import curses
import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping

from infrarsi_tui.version import product_version
from slurm.doctor.check import Check

GROUP = "terminal"
WIDTH, HEIGHT = 80, 24

_PARTS = ("submitit", "textual", "pydantic", "numpy", "scipy")


def front_end_checks() -> list[Check]:
    """The product itself, and the terminal that it is used in."""
    return [product_check(), torch_check(), *terminal_checks(os.environ)]


def product_check() -> Check:
    """Versions of what we consist of."""
    versions = []
    for name in _PARTS:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            return Check("product", "machine", "fail", f"{name} is missing", "", "install infrarsi-tui again")
    found = f"infrarsi {product_version()} on Python {platform.python_version()}: {', '.join(versions)}"
    return Check("product", "machine", "ok", found)


def torch_check() -> Check:
    """The engine must stay light on a login node."""
    if "torch" not in sys.modules:
        return Check("torch", "machine", "ok", "not imported by this process")
    return Check(
        "torch", "machine", "warn", "imported by this process", "seconds and gigabytes on a login node"
    )


def terminal_checks(environ: Mapping[str, str]) -> list[Check]:
    """Size, colours, multiplexer and encoding."""
    if not sys.stderr.isatty():
        return [Check("terminal", GROUP, "skipped", "no terminal here")]
    return [_size(), _colours(environ), _encoding(), _multiplexer(environ)]


def _size() -> Check:
    try:
        size = os.get_terminal_size(sys.stderr.fileno())
    except OSError:
        return Check("size", GROUP, "skipped", "not known")
    found = f"{size.columns} × {size.lines}"
    if size.columns < WIDTH or size.lines < HEIGHT:
        return Check(
            "size", GROUP, "warn", found, f"made for {WIDTH} × {HEIGHT} and more", "enlarge the window"
        )
    return Check("size", GROUP, "ok", found)


def _colours(environ: Mapping[str, str]) -> Check:
    if environ.get("NO_COLOR"):
        return Check("colours", GROUP, "ok", "none wanted (NO_COLOR)")
    if environ.get("COLORTERM", "").lower() in ("truecolor", "24bit"):
        return Check("colours", GROUP, "ok", "24 bit")
    try:
        curses.setupterm(environ.get("TERM"), sys.stderr.fileno())
        number = curses.tigetnum("colors")
    except curses.error:
        return Check(
            "colours", GROUP, "warn", f"TERM={environ.get('TERM')!r} is unknown here", "", "set TERM"
        )
    if number < 8:
        return Check("colours", GROUP, "warn", "no colours", "states are told by marks and words too")
    return Check("colours", GROUP, "ok", f"{number}")


def _encoding() -> Check:
    encoding = (sys.stdout.encoding or "").lower()
    if encoding.replace("-", "") == "utf8":
        return Check("encoding", GROUP, "ok", "UTF-8")
    return Check(
        "encoding", GROUP, "warn", encoding or "not known", "marks and lines may look odd", "LANG=C.UTF-8"
    )


def _multiplexer(environ: Mapping[str, str]) -> Check:
    if environ.get("TMUX"):
        return Check("multiplexer", GROUP, "ok", "tmux", "survives a lost connection")
    if environ.get("STY"):
        return Check("multiplexer", GROUP, "ok", "screen", "survives a lost connection")
    return Check("multiplexer", GROUP, "ok", "none", "long studies: `infrarsi submit` needs no open terminal")
