"""The only loop: the order of the stages, and what an error or a stop leaves behind."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from engine.errors import InfraError, StudyBusyError
from engine.journal.session import StopRequested
from engine.schema.study import Stage, StageEntered
from engine.stages.context import StudyContext
from engine.stages.deployment import run_deployment
from engine.stages.diagnosis import run_diagnosis
from engine.stages.reporting import run_reporting
from engine.stages.search import run_search

StageFunction = Callable[[StudyContext], None]

ALL_STAGES: tuple[StageFunction, ...] = (run_diagnosis, run_search, run_reporting, run_deployment)


def run_study(study: StudyContext, stages: tuple[StageFunction, ...] = ALL_STAGES) -> None:
    """Settle what a crash left open, then run the stages in order.

    Whatever ends the study early is recorded first, so that `status` and `resume` find it.

    Raises:
        StudyBusyError: another engine took the study over; nothing is recorded.
        Exception: a stage failed, InfraError or a defect; the study is left as `failed`.
        StopRequested, KeyboardInterrupt: a person ended it; the study is left as `stopped`.
    """
    try:
        study.runner.settle_open_trials()
        study.repeat_interrupted()
        for stage in stages:
            stage(study)
        if stages is ALL_STAGES or study.created.options.single_trial:
            study.session.record(StageEntered(stage=Stage.DONE))
    except StudyBusyError:
        raise  # the study is another engine's now
    except (StopRequested, KeyboardInterrupt) as stop:
        _leave(study, Stage.STOPPED, stop.reason if isinstance(stop, StopRequested) else "interrupted")
        raise
    except Exception as error:
        _leave(study, Stage.FAILED, str(error) if isinstance(error, InfraError) else repr(error))
        raise


def _leave(study: StudyContext, stage: Stage, note: str) -> None:
    """Record how the study ended early; what ended it is told in any case."""
    # A full disk may refuse this record too: the journal then ends with the last thing that fitted.
    with contextlib.suppress(InfraError):
        study.session.record(StageEntered(stage=stage, note=note))
