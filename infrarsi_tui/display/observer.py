"""Observers of a running study: plain lines for a person, log lines with a time stamp, or silence."""

from __future__ import annotations

import datetime as dt
import sys

from engine.journal.session import Observer
from engine.journal.state import StudyState
from engine.schema.study import Entry
from infrarsi_tui.display.narration import narration
from infrarsi_tui.streams import narrate


def make_observer(display: str) -> Observer | None:
    """The observer for `--display`; auto is plain on a terminal and log elsewhere."""
    if display == "none":
        return None
    if display == "tui":
        narrate("note: the full screen is not part of this version: plain lines take its place")
        display = "plain"
    if display == "auto":
        display = "plain" if sys.stderr.isatty() else "log"
    return _log if display == "log" else _plain


def _plain(entry: Entry, state: StudyState) -> None:
    line = narration(entry, state)
    if line:
        narrate(line)


def _log(entry: Entry, state: StudyState) -> None:
    line = narration(entry, state)
    if line:
        stamp = dt.datetime.fromtimestamp(entry.at, tz=dt.UTC).strftime("%H:%M:%S")
        narrate(f"{stamp} {line}")
