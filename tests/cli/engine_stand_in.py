"""An engine in a process of its own: opens a study and records the events that it is given on stdin.

Usage: engine_stand_in.py STUDY; each line is an event as JSON, `NOTICE text`, or `DIE` (SIGKILL of itself).
The end of stdin closes the study. Each line is answered with `ok`.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from pydantic import TypeAdapter

from engine.journal.folder import StudyFolder
from engine.journal.session import StudySession
from engine.schema.study import Event
from infrarsi_tui.clock import SystemClock
from infrarsi_tui.notices import Notices


def main() -> None:
    """Serve stdin."""
    folder = StudyFolder.open(Path(sys.argv[1]))
    events: TypeAdapter[Event] = TypeAdapter(Event)
    with StudySession(folder, SystemClock()) as session:
        print("ok", flush=True)
        for line in sys.stdin:
            if line.startswith("DIE"):
                os.kill(os.getpid(), signal.SIGKILL)
            if line.startswith("NOTICE "):
                Notices(folder.notices, is_shown=False).say(line.removeprefix("NOTICE ").strip())
            else:
                session.record(events.validate_json(line))
            print("ok", flush=True)


if __name__ == "__main__":
    main()
