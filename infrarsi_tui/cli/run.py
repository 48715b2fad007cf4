"""`run`, and its stages one by one: `diagnose`, `search`, `report`, `resume`."""

from __future__ import annotations

import contextlib
from argparse import Namespace
from collections.abc import Iterator

from engine.errors import ExitCode, UsageError
from engine.journal.summary import summarise, verified_verdict
from engine.stages.context import StudyContext
from engine.stages.diagnosis import run_diagnosis
from engine.stages.reporting import run_reporting
from engine.stages.search import run_search
from engine.study import run_study
from infrarsi_tui.composition import Choices, existing_study, new_study
from infrarsi_tui.display.observer import make_observer
from infrarsi_tui.streams import emit_json, emit_text, narrate


def run(arguments: Namespace) -> int:
    """All five stages on a task."""
    choices = Choices(
        out=arguments.out,
        executor=arguments.executor,
        seed=arguments.seed,
        trials=arguments.trials,
        gpu_hours=arguments.gpu_hours,
        deadline=arguments.deadline,
        advisor=arguments.advisor,
        patches=arguments.patches,
        deploy=arguments.deploy,
    )
    with new_study(arguments.task, choices, make_observer(arguments.display)) as study:
        narrate(f"study: {study.session.folder.root}")
        run_study(study)
        return finish(study, arguments)


def resume(arguments: Namespace) -> int:
    """Go on with a study that was stopped or killed."""
    with _whole_study(arguments) as study:
        run_study(study)
        return finish(study, arguments)


def diagnose(arguments: Namespace) -> int:
    """Measure the unchanged job."""
    choices = Choices(out=arguments.out, executor=arguments.executor, seed=arguments.seed)
    with new_study(arguments.task, choices, make_observer(arguments.display)) as study:
        narrate(f"study: {study.session.folder.root}")
        run_study(study, (run_diagnosis,))
        return _show(study, arguments, ExitCode.DONE)


def search(arguments: Namespace) -> int:
    """Diagnose where that is missing, then search."""
    with _whole_study(arguments) as study:
        run_study(study, (run_diagnosis, run_search))
        return _show(study, arguments, ExitCode.DONE)


def report(arguments: Namespace) -> int:
    """Verify the finalists and write the report."""
    with _whole_study(arguments) as study:
        run_study(study, (run_diagnosis, run_search, run_reporting))
        return finish(study, arguments)


@contextlib.contextmanager
def _whole_study(arguments: Namespace) -> Iterator[StudyContext]:
    with existing_study(arguments.study, make_observer(arguments.display)) as study:
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


def _show(study: StudyContext, arguments: Namespace, code: ExitCode) -> int:
    folder = study.session.folder
    if arguments.json:
        emit_json(summarise(study.state, str(folder.root)))
    elif folder.report_markdown.exists():
        emit_text(folder.report_markdown.read_text())
        narrate(f"report: {folder.report_markdown}")
    return code
