"""`attach`: watch a study that another process runs; takes nothing from its engine."""

from __future__ import annotations

import shlex
from argparse import Namespace

from engine.errors import ExitCode
from engine.journal.folder import StudyFolder
from engine.journal.state import StudyState
from engine.journal.summary import summarise, verified_verdict
from engine.schema.study import Stage
from infrarsi_tui.display.follow import StudyView, catch_up, follow
from infrarsi_tui.display.observer import make_observer
from infrarsi_tui.streams import emit_json, emit_text, narrate


def attach(arguments: Namespace) -> int:
    """Show what a study has said and says until its engine ends; ends like `run`."""
    return watch(StudyFolder.open(arguments.study), arguments)


def watch(folder: StudyFolder, arguments: Namespace) -> int:
    """Follow a study to the end of its engine.

    Returns:
        The exit code of the engine, or INTERRUPTED where it left the study open.
    """
    observer = make_observer(arguments.display)
    say = narrate if observer is not None else _nothing
    view = StudyView(folder)
    place = shlex.quote(str(folder.root))
    try:
        lines = catch_up(view)
        say(f"study: {folder.root}, {len(view.state.trials)} trials so far")
        for line in lines:
            say(line)
        engine = view.engine()
        if engine is not None:
            say(f"watching {engine}; Ctrl-C ends the watching only, `infrarsi stop {place}` ends the engine")
        follow(view, observer, lambda text: say(f"   {text}"))
    except KeyboardInterrupt:
        engine = view.engine()
        goes_on = f"{engine} goes on" if engine else f"`infrarsi resume {place}` goes on"
        narrate(f"no longer watching; {goes_on}")
        if arguments.json:
            emit_json(summarise(view.state, str(folder.root)))
        return ExitCode.INTERRUPTED
    code = exit_code(view)
    if view.ending is None and code is ExitCode.INTERRUPTED:
        narrate(f"no engine works on this study: `infrarsi resume {place}` goes on")
    _show(folder, view.state, arguments)
    return code


def exit_code(view: StudyView) -> ExitCode:
    """What the engine's own command ended with, as far as the journal tells."""
    is_reported = view.ending is None and view.state.stage is Stage.REPORTING
    if is_reported and view.state.verdicts is None:
        return ExitCode.INTERRUPTED
    if is_reported or (view.ending is not None and view.ending.stage is Stage.DONE):
        return ExitCode.NO_IMPROVEMENT if verified_verdict(view.state) is None else ExitCode.DONE
    if view.ending is not None and view.ending.exit_code is not None:
        return ExitCode(view.ending.exit_code)
    if view.ending is not None and view.ending.stage is Stage.FAILED:
        return ExitCode.INFRASTRUCTURE
    return ExitCode.DONE if _stage_is_complete(view.state) else ExitCode.INTERRUPTED


def _stage_is_complete(state: StudyState) -> bool:
    """Whether a command for some stages (`diagnose`, `search`) did what it was asked for."""
    return (state.stage is Stage.DIAGNOSIS and state.diagnosis is not None) or (
        state.stage is Stage.SEARCH and state.search_ended is not None
    )


def _show(folder: StudyFolder, state: StudyState, arguments: Namespace) -> None:
    if arguments.json:
        emit_json(summarise(state, str(folder.root)))
    elif state.stage is Stage.DONE and folder.report_markdown.exists():
        emit_text(folder.report_markdown.read_text())
        narrate(f"report: {folder.report_markdown}")


def _nothing(_: str) -> None:
    """Nobody reads."""
