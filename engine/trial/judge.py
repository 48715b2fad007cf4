"""From the folder of a trial whose job is over to its outcome."""

from __future__ import annotations

from engine.invariants.context import InvariantContext
from engine.journal.session import StudySession
from engine.journal.state import TrialState
from engine.ports import Clock
from engine.schema.evidence import RunEvidence
from engine.schema.job import JobState, Loss, SchedulerFacts
from engine.schema.trial import Outcome, OutcomeKind, TrialKind
from engine.task.load import Task
from engine.trial.attribution.context import AttributionContext
from engine.trial.attribution.losses import attribute_loss
from engine.trial.attribution.scheduler_words import loss_of
from engine.trial.charge import Stay
from engine.trial.evaluate import Reference, evaluate, outcome_kind
from engine.trial.evidence import read_evidence
from engine.trial.followed import FollowedJob, read_trace
from engine.trial.measure import mean_step_time
from engine.trial.plan import read_plan
from engine.trial.suspects import suspects_of_loss, suspects_of_run
from engine.trial.workspace import Workspace
from engine.units import gpu_hours

GRACE_S = 60.0
"""Seconds beyond the run's own limit for which an allocation is asked for."""


class Judge:
    """Judges the trials of one study; reads folders and the state, writes nothing."""

    def __init__(self, session: StudySession, task: Task, clock: Clock) -> None:
        self._session = session
        self._task = task
        self._clock = clock

    def evidence(self, trial_id: str) -> RunEvidence:
        """What a finished trial left behind."""
        trial_dir = self._session.folder.trial(trial_id)
        return read_evidence(trial_dir, read_plan(trial_dir))

    def outcome(self, trial: TrialState, job: FollowedJob) -> Outcome:
        """The outcome of a job in a terminal state."""
        if job.state is JobState.CANCELLED:
            return self.cancelled(trial, job)
        if job.state is JobState.LOST:
            return self._lost(trial, job)
        evidence = self.evidence(trial.trial_id)
        outcome = self._evaluated(trial, evidence, job.facts)
        stay = self._stay(trial, job, evidence)
        if outcome.kind is OutcomeKind.CANCELLED:
            outcome = _disowned(outcome, evidence, job.facts, stay)
        suspects: tuple[str, ...] = ()
        if outcome.kind is OutcomeKind.VOID and outcome.attribution is not None:
            suspects = suspects_of_run(evidence, outcome.attribution)
        return self._placed(outcome, job, stay).model_copy(update={"suspect_nodes": suspects})

    def cancelled(self, trial: TrialState, job: FollowedJob) -> Outcome:
        """The outcome of a trial that a person ended."""
        stay = self._stay(trial, job, None)
        empty = Outcome(kind=OutcomeKind.CANCELLED, wall_s=stay.held_s, gpu_hours=0.0)
        return self._placed(empty, job, stay)

    def _lost(self, trial: TrialState, job: FollowedJob) -> Outcome:
        """The outcome of a job that is gone without a result."""
        stay = self._stay(trial, job, None)
        loss, reason = (job.status.loss, job.status.reason) if job.status is not None else (None, None)
        limit_s = stay.longest_s - GRACE_S
        why = attribute_loss(loss, reason, job.facts, ran_s=stay.ran_s, own_limit_s=limit_s)
        nodes = _nodes(job, stay)
        lost = Outcome(
            kind=outcome_kind(why),
            attribution=why,
            wall_s=stay.held_s,
            gpu_hours=0.0,
            loss=loss,
            suspect_nodes=suspects_of_loss(loss, reason, nodes),
        )
        return self._placed(lost, job, stay)

    def _stay(self, trial: TrialState, job: FollowedJob, evidence: RunEvidence | None) -> Stay:
        trial_dir = self._session.folder.trial(trial.trial_id)
        plan = read_plan(trial_dir)
        return Stay(
            trial=trial,
            job=job,
            facts=job.own_facts(frozenset(self._session.state.allocations)),
            evidence=evidence,
            trace=read_trace(trial_dir, job.handle.token, plan.nodes),
            longest_s=plan.total_timeout_s + GRACE_S,
            now=self._clock.now(),
        )

    def _placed(self, outcome: Outcome, job: FollowedJob, stay: Stay) -> Outcome:
        """The outcome with its cost, and with where it ran and what the scheduler said of it."""
        facts, evidence = job.facts, stay.evidence
        in_slurm = evidence.slurm.job_id if evidence is not None and evidence.slurm is not None else None
        return outcome.model_copy(
            update={
                "gpu_hours": gpu_hours(stay.held_s, self._task.settings.allocation.world_size),
                "nodes": _nodes(job, stay),
                "allocation": facts.job_id if facts is not None else in_slurm,
                "scheduler": facts,
                "queue_wait_s": stay.queue_wait_s,
            }
        )

    def _evaluated(self, trial: TrialState, evidence: RunEvidence, facts: SchedulerFacts | None) -> Outcome:
        settings = self._task.settings
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
                scheduler=facts,
                own_limit_s=read_plan(self._session.folder.trial(trial.trial_id)).total_timeout_s,
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


def _nodes(job: FollowedJob, stay: Stay) -> tuple[str, ...]:
    """Where a trial ran: its agent's word, else the scheduler's, else whoever left a trace."""
    named = stay.evidence.node_names if stay.evidence is not None else ()
    return named or (job.facts.nodes if job.facts is not None else ()) or stay.trace.nodes


def _disowned(outcome: Outcome, evidence: RunEvidence, facts: SchedulerFacts | None, stay: Stay) -> Outcome:
    """The outcome of a job that was ended, but not by this engine: the scheduler may say by whom and why."""
    loss = loss_of(facts) or Loss.CANCELLED_OUTSIDE
    reason = outcome.attribution.cause if outcome.attribution is not None else None
    why = attribute_loss(loss, reason, facts, ran_s=evidence.wall_s, own_limit_s=stay.longest_s - GRACE_S)
    return outcome.model_copy(update={"kind": outcome_kind(why), "attribution": why, "loss": loss})
