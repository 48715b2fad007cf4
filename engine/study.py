"""The only loop: the order of the stages, and what an error or a stop leaves behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from engine.errors import ExitCode, InfraError, StudyBusyError
from engine.journal.session import Detached, StopRequested
from engine.schema.study import Stage, StageEntered
from engine.stages.context import StudyContext
from engine.stages.deployment import run_deployment
from engine.stages.diagnosis import run_diagnosis
from engine.stages.hooks import StudyEvent
from engine.stages.reporting import run_reporting
from engine.stages.search import run_search
from engine.stages.streak import StudyPaused
from engine.stages.waiting import WaitingWatch

StageFunction = Callable[[StudyContext], None]

ALL_STAGES: tuple[StageFunction, ...] = (run_diagnosis, run_search, run_reporting, run_deployment)


def run_study(study: StudyContext, stages: tuple[StageFunction, ...] = ALL_STAGES) -> None:
    """Settle what a crash left open, then run the stages in order.

    Whatever ends the study early is recorded first, so that `status` and `resume` find it.

    Raises:
        StudyBusyError: another engine took the study over; nothing is recorded.
        Detached: the engine was asked to leave; nothing is recorded, jobs and held allocations stay.
        Exception: a stage failed, InfraError or a defect; the study is left as `failed`.
        StudyPaused: a person has to look first; the study is left as `stopped`.
        StopRequested, KeyboardInterrupt: a person ended it; the study is left as `stopped`.
    """
    study.runner.watch = WaitingWatch(study.clock, study.hooks)
    try:
        with _allocations_given_back(study):
            study.recover()
            for stage in stages:
                stage(study)
            if stages is ALL_STAGES or study.created.options.single_trial:
                study.session.record(StageEntered(stage=Stage.DONE))
    except StudyBusyError:
        raise  # the study is another engine's now
    except (StopRequested, KeyboardInterrupt) as stop:
        note = stop.reason if isinstance(stop, StopRequested) else "interrupted"
        _leave(study, Stage.STOPPED, note, ExitCode.INTERRUPTED)
        raise
    except StudyPaused as pause:
        _leave(study, Stage.STOPPED, pause.reason, ExitCode.INTERRUPTED)
        study.hooks.happened(StudyEvent.PAUSED)
        raise
    except Exception as error:
        code = error.exit_code if isinstance(error, InfraError) else ExitCode.INTERNAL
        _leave(study, Stage.FAILED, str(error) if isinstance(error, InfraError) else repr(error), code)
        study.hooks.happened(StudyEvent.FAILED)
        raise
    study.hooks.happened(StudyEvent.FINISHED)


@contextlib.contextmanager
def _allocations_given_back(study: StudyContext) -> Iterator[None]:
    """Give back what is held between trials, unless its trial runs on or it is another engine's now."""
    try:
        yield
    except (Detached, StudyBusyError):
        raise
    except BaseException:
        study.give_back()
        raise
    study.give_back()


def _leave(study: StudyContext, stage: Stage, note: str, code: ExitCode) -> None:
    """Record how the study ended early; what ended it is told in any case."""
    # A full disk may refuse this record too: the journal then ends with the last thing that fitted.
    with contextlib.suppress(InfraError):
        study.session.record(StageEntered(stage=stage, note=note, exit_code=code))
