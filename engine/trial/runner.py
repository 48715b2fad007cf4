"""The life of one trial: prepare, claim, submit, wait, evaluate; and what a crash left open."""

from __future__ import annotations

import json
from pathlib import Path

from engine.durable import explain_disk_errors
from engine.errors import IntegrityError
from engine.invariants.context import InvariantContext
from engine.journal.session import StopRequested, StudySession
from engine.journal.state import TrialState
from engine.ports import Clock, JobExecutor
from engine.schema.evidence import RunEvidence
from engine.schema.job import JobHandle, JobRequest, JobState, JobStatus
from engine.schema.study import TrialFinished, TrialSubmitted
from engine.schema.trial import Attribution, Candidate, FailureKind, Outcome, OutcomeKind, TrialKind
from engine.task.load import Task
from engine.trial.attribution.context import AttributionContext
from engine.trial.evaluate import Reference, evaluate, refused_outcome
from engine.trial.evidence import read_evidence
from engine.trial.file_tree import remove_tree
from engine.trial.measure import mean_step_time
from engine.trial.plan import RefusedTrial, claimed_by_another, prepare_trial, read_plan, scope_violations
from engine.trial.workspace import Workspace
from engine.units import gpu_hours

POLL_S = 0.25
_GRACE_S = 60.0
_UNRECORDED = "unrecorded"


class TrialRunner:
    """Runs trials of one study, one at a time."""

    def __init__(self, session: StudySession, task: Task, executor: JobExecutor, clock: Clock) -> None:
        self._session = session
        self._task = task
        self._executor = executor
        self._clock = clock

    def run(self, trial: TrialState) -> Outcome:
        """Take a proposed trial to its outcome, which is in the journal when this returns.

        Raises:
            StopRequested, KeyboardInterrupt: a person asked to stop; the trial is recorded as cancelled.
            InfrastructureError: the disk or the executor refused.
            StudyBusyError: another engine works on the study, or claimed the trial.
        """
        folder, created = self._session.folder, self._session.state.created
        if created is None:
            raise AssertionError("the study has no first event")
        prepared = prepare_trial(self._task, folder, trial, created.nonce, self._session.state.diagnosis)
        if isinstance(prepared, RefusedTrial):
            return self._finish(trial, refused_outcome(prepared))
        request = self._claim(trial)
        unrecorded = self._unrecorded_handle(Path(request.trial_dir))
        return self._finish(trial, self._follow(trial, unrecorded, request))

    def leaves_scope(self, candidate: Candidate) -> bool:
        """Whether patches of a candidate touch files that the task does not let them touch."""
        return bool(scope_violations(self._task, self._session.folder, candidate))

    def settle_open_trials(self) -> None:
        """Adopt or run what an earlier engine left without an outcome."""
        for trial in self._session.state.open_trials():
            trial_dir = self._session.folder.trial(trial.trial_id)
            if not (trial_dir / "claim").exists():
                self.run(trial)
                continue
            handle = trial.handle
            if handle is None:
                handle = self._unrecorded_handle(trial_dir)
                self._session.record(TrialSubmitted(trial_id=trial.trial_id, handle=handle))
            self._finish(trial, self._follow(trial, handle))

    def evidence(self, trial_id: str) -> RunEvidence:
        """What a finished trial left behind."""
        trial_dir = self._session.folder.trial(trial_id)
        return read_evidence(trial_dir, read_plan(trial_dir))

    def _claim(self, trial: TrialState) -> JobRequest:
        """Take the right to submit a prepared trial, once and for all engines."""
        trial_dir = self._session.folder.trial(trial.trial_id)
        plan = read_plan(trial_dir)
        with explain_disk_errors(trial_dir):
            try:
                (trial_dir / "claim").mkdir(mode=0o700)
            except FileExistsError:
                raise claimed_by_another(trial_dir) from None
        return JobRequest(
            trial_id=plan.trial_id,
            trial_dir=plan.trial_dir,
            spec_path=str(trial_dir / "spec.json"),
            token=plan.token,
            nodes=plan.nodes,
            ranks_per_node=plan.ranks_per_node,
            cpus_per_rank=plan.cpus_per_rank,
            time_limit_s=plan.total_timeout_s + _GRACE_S,
        )

    def _unrecorded_handle(self, trial_dir: Path) -> JobHandle:
        """The handle of a job whose submission is not recorded (yet)."""
        created = self._session.state.created
        try:
            token = json.loads((trial_dir / "spec.json").read_text())["token"]
        except (OSError, ValueError, KeyError) as error:
            raise IntegrityError(
                "the trial was claimed but its plan cannot be read",
                file=str(trial_dir / "spec.json"),
                hint="restore the file, or remove the trial's folder to have it run again",
            ) from error
        executor = created.options.executor if created else "local"
        return JobHandle(executor=executor, job_id=_UNRECORDED, trial_dir=str(trial_dir), token=token)

    def _follow(self, trial: TrialState, handle: JobHandle, request: JobRequest | None = None) -> Outcome:
        """Submit what is requested, wait for the end of the job and judge it.

        An interrupt at any moment ends the job, by the given handle until the executor's own is known.
        """
        try:
            if request is not None:
                handle = self._executor.submit(request)
                self._session.record(TrialSubmitted(trial_id=trial.trial_id, handle=handle))
            status = self._await(handle)
        except (StopRequested, KeyboardInterrupt):
            self._executor.cancel(handle)
            self._finish(trial, self._unjudged(OutcomeKind.CANCELLED, None, trial, handle))
            raise
        if status.state is JobState.CANCELLED:
            return self._unjudged(OutcomeKind.CANCELLED, None, trial, handle)
        if status.state is JobState.LOST:
            self._executor.cancel(handle)  # its processes may outlive their agent
            cause = status.reason or "the job is gone without a result"
            lost = Attribution(kind=FailureKind.INFRA, blame_candidate=False, cause=cause)
            return self._unjudged(OutcomeKind.VOID, lost, trial, handle)
        return _disowned(self._judge(trial))

    def _await(self, handle: JobHandle) -> JobStatus:
        while True:
            status = self._executor.poll(handle)
            if status.state.is_terminal:
                return status
            self._session.heartbeat()
            self._clock.sleep(POLL_S)

    def _judge(self, trial: TrialState) -> Outcome:
        settings = self._task.settings
        evidence = self.evidence(trial.trial_id)
        workspace = Workspace.load(self._session.folder.trial(trial.trial_id) / "work")
        baseline = self._task.space.baseline()
        configuration = trial.proposed.candidate.configuration
        is_unchanged = trial.proposed.kind in (TrialKind.BASELINE, TrialKind.PERTURBATION)
        return evaluate(
            evidence,
            wall_s=evidence.wall_s or self._clock.now() - trial.proposed_at,
            horizon_updates=settings.measurement.horizon_updates,
            reference=None if is_unchanged else self._reference(trial.proposed.total_updates),
            attribution=AttributionContext(
                changes={name: value for name, value in configuration.items() if value != baseline.get(name)},
                patched_files=workspace.patched_files,
                first_log_line=evidence.log_first_line,
            ),
            invariants=self._invariant_context(workspace.findings(), trial.proposed.kind),
        )

    def _invariant_context(self, findings: tuple[str, ...], kind: TrialKind) -> InvariantContext:
        settings, diagnosis = self._task.settings, self._session.state.diagnosis
        # The known peaks are those of bf16: a lower floor permits what is faster.
        peak_holds = settings.constraints.precision_floor != "fp8"
        return InvariantContext(
            loss_tolerance=settings.constraints.loss_tolerance,
            loss_band=diagnosis.loss_band if diagnosis else 0.0,
            grad_norm_band=diagnosis.grad_norm_band if diagnosis else None,
            end_state_band=diagnosis.end_state_band if diagnosis else None,
            precision_floor=settings.constraints.precision_floor,
            allow=tuple(settings.constraints.allow),
            data_order=settings.constraints.data_order,
            scope_findings=findings,
            nodes=settings.allocation.nodes,
            world_size=settings.allocation.world_size,
            device_peak_flops=diagnosis.device_peak_flops if diagnosis and peak_holds else None,
            flops_per_update=(diagnosis.flops_per_update or None) if diagnosis else None,
            is_short_run=kind is TrialKind.RETEST,
        )

    def _reference(self, total_updates: int) -> Reference | None:
        """The baseline, by a run of as many updates where there is one: only those end in one state."""
        baselines = [
            trial
            for trial in self._session.state.of_kind(TrialKind.BASELINE)
            if trial.outcome is not None and trial.outcome.kind is OutcomeKind.COMPLETED
        ]
        measurements = [
            trial.outcome.measurement for trial in baselines if trial.outcome and trial.outcome.measurement
        ]
        step_time_s = mean_step_time(measurements, self._task.settings.measurement.horizon_updates)
        if step_time_s is None:
            return None
        equal = [trial for trial in baselines if trial.proposed.total_updates == total_updates]
        return Reference(self.evidence((equal or baselines)[0].trial_id), step_time_s)

    def _unjudged(
        self, kind: OutcomeKind, why: Attribution | None, trial: TrialState, handle: JobHandle
    ) -> Outcome:
        """An outcome without numbers; hours in which no engine was there to look are not charged."""
        plan = read_plan(self._session.folder.trial(trial.trial_id))
        longest = 0.0 if handle.job_id == _UNRECORDED else plan.total_timeout_s + _GRACE_S
        wall_s = min(longest, max(0.0, self._clock.now() - trial.proposed_at))
        hours = gpu_hours(wall_s, self._task.settings.allocation.world_size)
        return Outcome(kind=kind, attribution=why, wall_s=wall_s, gpu_hours=hours)

    def _finish(self, trial: TrialState, outcome: Outcome) -> Outcome:
        self._session.record(TrialFinished(trial_id=trial.trial_id, outcome=outcome))
        # Not before the outcome is on disk: a successor of this engine would have to judge the run again.
        trial_dir = self._session.folder.trial(trial.trial_id)
        remove_tree(trial_dir / "work")
        remove_tree(trial_dir / "probe")
        return outcome


def _disowned(outcome: Outcome) -> Outcome:
    """The outcome of a job that this engine did not cancel: an end from outside is not the candidate's."""
    if outcome.kind is not OutcomeKind.CANCELLED:
        return outcome
    seen = outcome.attribution
    cause = "the job was ended from outside" + (f": {seen.cause}" if seen else "")
    outside = Attribution(
        kind=FailureKind.INFRA, blame_candidate=False, cause=cause, evidence=seen.evidence if seen else ()
    )
    return outcome.model_copy(update={"kind": OutcomeKind.VOID, "attribution": outside})
