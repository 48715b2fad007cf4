"""stdout is data, stderr is narration; this module owns both."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from typing import Any

from engine.errors import InfraError


def emit_json(value: Any) -> None:
    """Write the command's single JSON object; ASCII, so that no locale and no file name can break it."""
    _write(json.dumps(value, indent=2, allow_nan=False))


def emit_text(text: str) -> None:
    """Write a result for people."""
    encoding = sys.stdout.encoding or "utf-8"
    _write(text.rstrip("\n").encode(encoding, "backslashreplace").decode(encoding))


def emit_error(
    kind: str, message: str, *, file: str | None = None, key: str | None = None, hint: str | None = None
) -> None:
    """Write an error as the command's single JSON object."""
    emit_json({"error": {"kind": kind, "message": message, "file": file, "key": key, "hint": hint}})


def narrate(line: str) -> None:
    """Say what is going on; a terminal that is gone (a lost connection) hears nothing and stops nobody."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def narrate_error(error: InfraError) -> None:
    """The same error for people: what, where, the rule, the next step."""
    narrate(f"error: {error.message}")
    for label, value in (
        ("file", error.file),
        ("key", error.key),
        ("value", error.value),
        ("rule", error.rule),
        ("next", error.hint),
    ):
        if value is not None:
            narrate(f"  {label:<6}{value}")


def _write(text: str) -> None:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has seen enough; the exit code still tells how the command ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
