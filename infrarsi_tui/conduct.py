"""What a command puts around an engine: signals, notices, the user's command for events."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
from argparse import Namespace
from collections.abc import Iterator

from engine.journal.session import Detached, StopRequested
from engine.stages.context import StudyContext
from engine.stages.hooks import Hooks
from engine.stages.streak import StudyPaused
from infrarsi_tui.event_command import EventCommand
from infrarsi_tui.leaving import LeftStudy, signals_handled
from infrarsi_tui.notices import Notices


@contextlib.contextmanager
def conducted(study: StudyContext, arguments: Namespace) -> Iterator[StudyContext]:
    """The study, listened to; how it was left is told by LeftStudy with the command that goes on.

    Raises:
        LeftStudy: a person or the system ended the engine, or it paused itself.
    """
    root = study.session.folder.root
    goes_on = f"`infrarsi resume {shlex.quote(str(root))}` goes on"
    notices = Notices(study.session.folder.notices, is_shown=arguments.display != "none")
    command = EventCommand(study.created.options.on_event, root, notices.say)
    hooks = Hooks(say=notices.say, happened=command.happened)
    try:
        with signals_handled(study.session.detach):
            yield dataclasses.replace(study, hooks=hooks)
    except Detached:
        raise LeftStudy("left: its jobs run on", hint=goes_on, kind="detached") from None
    except StudyPaused as pause:
        raise LeftStudy(pause.reason, hint=goes_on, kind="paused") from None
    except (StopRequested, KeyboardInterrupt):
        raise LeftStudy("stopped", hint=goes_on) from None
    finally:
        command.finish()
