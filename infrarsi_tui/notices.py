"""Sentences of a running engine that are no part of the study's state: shown at once, kept for viewers."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from engine.journal.follow import LineTail
from infrarsi_tui.streams import narrate


class Notices:
    """Writes notices beside the journal, one JSON object a line, and shows them where somebody watches.

    Args:
        path: The file; a notice that does not fit on the disk is only shown.
        is_shown: Whether somebody watches this process.
    """

    def __init__(self, path: Path, *, is_shown: bool) -> None:
        self._path = path
        self._is_shown = is_shown

    def say(self, text: str) -> None:
        """Tell one sentence; never raises for a full disk."""
        line = json.dumps({"at": time.time(), "text": text}).encode() + b"\n"
        with contextlib.suppress(OSError):
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(descriptor, line)
            finally:
                os.close(descriptor)
        if self._is_shown:
            narrate(f"   {text}")


def new_notices(tail: LineTail) -> Iterator[str]:
    """Sentences that were added since the last look; lines that are none are passed over."""
    for line in tail.new_lines():
        with contextlib.suppress(ValueError, TypeError, KeyError):
            yield str(json.loads(line)["text"])
