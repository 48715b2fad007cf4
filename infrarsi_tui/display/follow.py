"""A study that another process runs, as it goes: its narration so far, then what comes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator

from engine.journal import lease
from engine.journal.folder import StudyFolder
from engine.journal.follow import JournalFollower, LineTail
from engine.journal.session import Observer
from engine.journal.state import StudyState
from engine.schema.study import Entry, EpochStarted, Stage, StageEntered
from infrarsi_tui.display.narration import narration
from infrarsi_tui.notices import new_notices

LINES_SO_FAR = 12
"""Of what was said before a viewer came, this much is shown."""
LOOK_S = 1.0
_LOOKS_PER_OWNER = 5
_ENDS = (Stage.DONE, Stage.FAILED, Stage.STOPPED)


class StudyView:
    """A reader of a study: state and last entry that ended it; takes nothing from the engine.

    Attributes:
        state: The study as far as it was read.
        ending: How the last engine left it; None while one works on it, or where it left without a word.
    """

    def __init__(self, folder: StudyFolder) -> None:
        self.folder = folder
        self.state = StudyState()
        self.ending: StageEntered | None = None
        self._follower = JournalFollower(folder.journal)
        self._notices = LineTail(folder.notices, skip_present=True)

    def new_entries(self) -> Iterator[Entry]:
        """Entries since the last look, each after it was folded in."""
        for entry in self._follower.new_entries():
            self.state.apply(entry)
            if isinstance(entry.data, EpochStarted):
                self.ending = None
            elif isinstance(entry.data, StageEntered):
                self.ending = entry.data if entry.data.stage in _ENDS else None
            yield entry

    def new_notices(self) -> Iterator[str]:
        """What the engine said beside the journal since the last look."""
        return new_notices(self._notices)

    def engine(self) -> str | None:
        """The process that works on the study now."""
        epoch = lease.latest_epoch(self.folder.journal)
        return None if epoch is None else lease.live_owner(self.folder.journal, epoch)


def catch_up(view: StudyView) -> list[str]:
    """Read what is there; its last lines of narration."""
    lines = deque[str](maxlen=LINES_SO_FAR)
    for entry in view.new_entries():
        line = narration(entry, view.state)
        if line:
            lines.append(line)
    return list(lines)


def follow(view: StudyView, observer: Observer | None, say: Callable[[str], None]) -> None:
    """Show what happens until the engine has ended or is gone."""
    while True:
        engine = view.engine()
        for _ in range(_LOOKS_PER_OWNER):
            _show_new(view, observer, say)
            if view.ending is not None or engine is None:
                return
            time.sleep(LOOK_S)


def _show_new(view: StudyView, observer: Observer | None, say: Callable[[str], None]) -> None:
    for entry in view.new_entries():
        if observer is not None:
            observer(entry, view.state)
    for notice in view.new_notices():
        say(notice)
