"""Journal events written by hand: a study of one baseline and two candidates."""

from __future__ import annotations

from collections.abc import Iterable

from engine.journal.state import StudyState
from engine.schema.diagnosis import Diagnosis, NoiseEstimate
from engine.schema.job import JobHandle
from engine.schema.study import (
    Diagnosed,
    Entry,
    Event,
    FinalistVerdict,
    Prediction,
    StudyCreated,
    StudyOptions,
    TrialFinished,
    TrialProposed,
    TrialSubmitted,
)
from engine.schema.trial import (
    Attribution,
    Candidate,
    FailureKind,
    Measurement,
    Outcome,
    OutcomeKind,
    Phases,
    TrialKind,
)

NO_PHASES = Phases(forward=None, backward=None, optimizer=None, communication=None, data=None)
CREATED = StudyCreated(
    task_name="tiny",
    task_sha256="0" * 64,
    snapshot_sha256="1" * 64,
    project="/project",
    nonce="ab12",
    options=StudyOptions(seed=0, trials=4, gpu_hours=None, advisor="rules", patches="off"),
    product_version="0.1.0",
)
DIAGNOSED = Diagnosed(
    diagnosis=Diagnosis(
        step_time_s=0.5,
        tokens_per_s=None,
        mfu=None,
        mfu_reason="the peak is unknown",
        flops_per_update=None,
        peak_memory_gib=1.5,
        memory_limit_gib=None,
        noise=NoiseEstimate(within=0.01, between=0.02, dof=2, runs=3, smallest_effect=0.03),
        phases=NO_PHASES,
        unexplained_s=None,
        bottleneck="compute",
        bottleneck_reason="the backward pass takes most of the time",
        baseline_trials=("b001",),
        loss_band=0.0,
    )
)


def measurement(step_time_s: float, peak_memory_gib: float | None = None) -> Measurement:
    """A run of three equal updates."""
    return Measurement(
        step_time_s=step_time_s,
        step_times_s=(step_time_s,) * 3,
        cpu_s_per_update=step_time_s,
        tokens_per_update=None,
        tokens_per_s=None,
        peak_memory_gib=peak_memory_gib,
        memory_metric=None,
        phases=NO_PHASES,
        losses=(),
        start_s=None,
        warmup_updates=1,
        probe_share=0.0,
    )


def proposed(
    trial_id: str, kind: TrialKind = TrialKind.SEARCH, predicted: Prediction | None = None
) -> TrialProposed:
    """A trial of micro-batch size 2."""
    return TrialProposed(
        trial_id=trial_id,
        kind=kind,
        origin="advisor",
        reason="Larger matrix products.",
        candidate=Candidate(configuration={"micro_batch_size": 2}),
        predicted=predicted,
        total_updates=5,
        measured_updates=3,
    )


def submitted(trial_id: str) -> TrialSubmitted:
    """The trial was handed over."""
    handle = JobHandle(executor="local", job_id="1", trial_dir=f"/study/{trial_id}", token="t")
    return TrialSubmitted(trial_id=trial_id, handle=handle)


def finished(trial_id: str, outcome: Outcome) -> TrialFinished:
    """The trial is over."""
    return TrialFinished(trial_id=trial_id, outcome=outcome)


def completed(step_time_s: float, speedup: float | None = None, memory: float | None = None) -> Outcome:
    """A measured run."""
    return Outcome(
        kind=OutcomeKind.COMPLETED,
        measurement=measurement(step_time_s, memory),
        speedup=speedup,
        wall_s=10.0,
        gpu_hours=0.01,
    )


def failed(kind: FailureKind, cause: str) -> Outcome:
    """A run that died."""
    why = Attribution(kind=kind, blame_candidate=True, cause=cause)
    return Outcome(kind=OutcomeKind.FAILED, attribution=why, wall_s=5.0, gpu_hours=0.005)


def verdict(*, verified: bool, speedup: float | None = 1.25) -> FinalistVerdict:
    """The judgement of one finalist."""
    return FinalistVerdict(
        candidate=Candidate(configuration={"micro_batch_size": 2}),
        speedup=speedup,
        speedup_ci=None if speedup is None else (speedup - 0.05, speedup + 0.05),
        pairs=6,
        verified=verified,
        reasons=() if verified else ("the interval is too wide",),
        invariants=(),
    )


BASELINE: tuple[Event, ...] = (
    proposed("b001", TrialKind.BASELINE),
    submitted("b001"),
    finished("b001", completed(0.5)),
    DIAGNOSED,
)
PROPOSED = proposed("t001")
FAST = finished("t001", completed(0.4, 1.25, 1.5))
SLOW = proposed("t002")


def told(events: Iterable[tuple[float, Event]]) -> tuple[StudyState, Entry]:
    """The state after events at given times, and the last entry."""
    state, entry = StudyState(), None
    for number, (at, event) in enumerate(events):
        entry = Entry(epoch=0, n=number, at=at, data=event)
        state.apply(entry)
    if entry is None:
        raise ValueError("a story has at least one event")
    return state, entry
