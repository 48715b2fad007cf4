"""`run`, and its stages one by one: `diagnose`, `search`, `report`, `resume`."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Callable, Iterator

from engine.errors import ExitCode, StudyBusyError, UsageError
from engine.journal.folder import StudyFolder
from engine.journal.summary import summarise, verified_verdict
from engine.stages.context import StudyContext
from engine.stages.diagnosis import run_diagnosis
from engine.stages.reporting import run_reporting
from engine.stages.search import run_search
from engine.study import ALL_STAGES, StageFunction, run_study
from infrarsi_tui.cli.attach import watch
from infrarsi_tui.cli.choices import run_choices
from infrarsi_tui.composition import Choices, existing_study, new_study
from infrarsi_tui.conduct import conducted
from infrarsi_tui.display.observer import make_observer
from infrarsi_tui.streams import emit_json, emit_text, narrate


def run(arguments: Namespace) -> int:
    """All five stages on a task."""
    with _new_study(arguments, run_choices(arguments)) as study:
        run_study(study)
        return finish(study, arguments)


def resume(arguments: Namespace) -> int:
    """Go on with a study that was stopped or killed."""
    return _go_on(arguments, ALL_STAGES, finish)


def diagnose(arguments: Namespace) -> int:
    """Measure the unchanged job."""
    choices = Choices(out=arguments.out, executor=arguments.executor, seed=arguments.seed)
    with _new_study(arguments, choices) as study:
        run_study(study, (run_diagnosis,))
        return _show_as_done(study, arguments)


def search(arguments: Namespace) -> int:
    """Diagnose where that is missing, then search."""
    return _go_on(arguments, (run_diagnosis, run_search), _show_as_done)


def report(arguments: Namespace) -> int:
    """Verify the finalists and write the report."""
    return _go_on(arguments, (run_diagnosis, run_search, run_reporting), finish)


def _go_on(
    arguments: Namespace,
    stages: tuple[StageFunction, ...],
    ending: Callable[[StudyContext, Namespace], int],
) -> int:
    """Run stages of an existing study; where another engine does so already, watch that one instead.

    Raises:
        StudyBusyError: another engine works on it, and the answer is to be JSON.
    """
    with contextlib.ExitStack() as stack:
        try:
            study = stack.enter_context(_whole_study(arguments))
        except StudyBusyError as busy:
            if arguments.json:
                raise
            narrate(f"{busy.message}; this command only watches it")
            return watch(StudyFolder.open(arguments.study), arguments)
        run_study(study, stages)
        return ending(study, arguments)


@contextlib.contextmanager
def _new_study(arguments: Namespace, choices: Choices) -> Iterator[StudyContext]:
    with (
        new_study(arguments.task, choices, make_observer(arguments.display)) as opened,
        conducted(opened, arguments) as study,
    ):
        narrate(f"study: {study.session.folder.root}")
        yield study


@contextlib.contextmanager
def _whole_study(arguments: Namespace) -> Iterator[StudyContext]:
    with (
        existing_study(arguments.study, make_observer(arguments.display)) as opened,
        conducted(opened, arguments) as study,
    ):
        if study.created.options.single_trial:
            raise UsageError(
                "the folder holds single trials, not a study",
                key="STUDY",
                value=str(arguments.study),
                hint="repeat `infrarsi trial` with the same --out: its baseline is kept",
            )
        yield study


def finish(study: StudyContext, arguments: Namespace) -> int:
    """Print the result; 0 for a verified improvement, 1 for none."""
    verified = verified_verdict(study.state) is not None
    return _show(study, arguments, ExitCode.DONE if verified else ExitCode.NO_IMPROVEMENT)


def _show_as_done(study: StudyContext, arguments: Namespace) -> int:
    return _show(study, arguments, ExitCode.DONE)


def _show(study: StudyContext, arguments: Namespace, code: ExitCode) -> int:
    folder = study.session.folder
    if arguments.json:
        emit_json(summarise(study.state, str(folder.root)))
    elif folder.report_markdown.exists():
        emit_text(folder.report_markdown.read_text())
        narrate(f"report: {folder.report_markdown}")
    return code
