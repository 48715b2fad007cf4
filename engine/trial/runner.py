"""The life of one trial: prepare, claim, submit, wait, evaluate; and what a crash left open."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from engine.diagnosis.nodes import excluded_nodes
from engine.durable import explain_disk_errors
from engine.errors import InfraError, IntegrityError
from engine.journal.session import StopRequested, StudySession
from engine.journal.state import TrialState
from engine.ports import Clock, JobExecutor
from engine.schema.evidence import RunEvidence
from engine.schema.job import JobHandle, JobRequest, JobState, JobStatus
from engine.schema.study import AllocationUsed, TrialFinished, TrialSubmitted
from engine.schema.trial import Candidate, Outcome
from engine.task.load import Task
from engine.trial.evaluate import refused_outcome
from engine.trial.file_tree import remove_tree
from engine.trial.followed import UNRECORDED, FollowedJob
from engine.trial.judge import GRACE_S, Judge
from engine.trial.pace import SHORTEST_S, pause_s
from engine.trial.plan import RefusedTrial, claimed_by_another, prepare_trial, read_plan, scope_violations


class TrialRunner:
    """Runs trials of one study. `start` and `settle` never wait; `run` and `wait_for_any` do.

    Whatever raises StopRequested or KeyboardInterrupt in here ends the jobs of the trials that were given to
    that call and records them as cancelled; Detached leaves jobs and trials as they are.
    """

    def __init__(self, session: StudySession, task: Task, executor: JobExecutor, clock: Clock) -> None:
        self._session = session
        self._task = task
        self._executor = executor
        self._clock = clock
        self._judge = Judge(session, task, clock)
        self._followed: dict[str, FollowedJob] = {}
        self.watch: Callable[[TrialState, JobStatus], None] | None = None
        """Is shown every reading of a job."""

    def run(self, trial: TrialState) -> Outcome:
        """Take a proposed trial to its outcome, which is in the journal when this returns.

        Raises:
            StopRequested, KeyboardInterrupt: a person asked to stop; the trial is recorded as cancelled.
            Detached: the engine was asked to leave; the job runs on.
            InfrastructureError: the disk or the executor refused.
            StudyBusyError: another engine works on the study, or claimed the trial.
        """
        return self.start(trial) or self._wait(trial)

    def start(self, trial: TrialState) -> Outcome | None:
        """Prepare, claim and submit a proposed trial; returns at once.

        Returns:
            The recorded outcome where no job is needed (a patch does not fit), else None: `settle` it.

        Raises:
            StopRequested, KeyboardInterrupt: interrupted; the trial is recorded as cancelled.
            InfrastructureError, StudyBusyError: as `run`.
        """
        folder, created = self._session.folder, self._session.state.created
        if created is None:
            raise AssertionError("the study has no first event")
        prepared = prepare_trial(self._task, folder, trial, created.nonce, self._session.state.diagnosis)
        if isinstance(prepared, RefusedTrial):
            return self._finish(trial, refused_outcome(prepared))
        request = self._claim(trial)
        self._follow(trial, self._unrecorded_handle(Path(request.trial_dir)))
        with self._ended_by_interrupt([trial]):
            handle = self._executor.submit(request)
            self._follow(trial, handle)
            self._session.record(TrialSubmitted(trial_id=trial.trial_id, handle=handle))
        return None

    def settle(self, trial: TrialState) -> Outcome | None:
        """Look at a started trial once; its recorded outcome when the job is over, else None.

        Raises:
            InfrastructureError: the executor or the disk refused.
        """
        if trial.outcome is not None:
            return trial.outcome
        job = self._followed.get(trial.trial_id) or self._adopt(trial)
        status = self._executor.poll(job.handle)
        if self.watch is not None:
            self.watch(trial, status)
        job.note(status, self._clock.now())
        if not status.state.is_terminal:
            return None
        if status.state is JobState.LOST:
            self._executor.cancel(job.handle)  # its processes may outlive their agent
        self.record_usage()
        return self._finish(trial, self._judge.outcome(trial, job))

    def wait_for_any(self, trials: Sequence[TrialState]) -> list[TrialState]:
        """Wait until at least one of some started trials has its outcome; returns those that have.

        Raises:
            StopRequested, KeyboardInterrupt: all of them are ended and recorded as cancelled.
            Detached: the engine was asked to leave; the jobs run on.
        """
        with self._ended_by_interrupt(trials):
            while True:
                finished = [trial for trial in trials if self.settle(trial) is not None]
                if finished or not trials:
                    return finished
                self._session.heartbeat()
                self._clock.sleep(self.pause_s())

    def pause_s(self) -> float:
        """Seconds until the followed trials are worth another look."""
        now = self._clock.now()
        pauses = [pause_s(each.state, now - each.since) for each in self._followed.values()]
        return min(pauses, default=SHORTEST_S)

    def cancel(self, trial: TrialState) -> Outcome:
        """End the job of a started trial and record it as cancelled; one with an outcome keeps it."""
        if trial.outcome is not None:
            return trial.outcome
        job = self._followed.get(trial.trial_id) or self._adopt(trial)
        self._executor.cancel(job.handle)
        return self._finish(trial, self._judge.cancelled(trial, job))

    def cancel_all(self, trials: Sequence[TrialState]) -> None:
        """End the jobs of all trials that have one; one that cannot be ended spares no other."""
        problems: list[InfraError] = []
        for trial in trials:
            if trial.outcome is None and self.is_claimed(trial):
                try:
                    self.cancel(trial)
                except InfraError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def record_usage(self) -> None:
        """Record what allocations that are held across trials have cost, as far as the journal lacks it."""
        for use in self._executor.usage():
            if self._session.state.allocations.get(use.job_id) != use:
                self._session.record(AllocationUsed(use=use))

    def settle_open_trials(self) -> None:
        """Wait for what an earlier engine submitted, then run what it only proposed."""
        opened = self._session.state.open_trials()
        submitted = [trial for trial in opened if self.is_claimed(trial)]
        with self._ended_by_interrupt(submitted):
            for trial in submitted:
                self._adopt(trial)
        left = submitted
        while left:
            self.wait_for_any(left)
            left = [trial for trial in left if trial.outcome is None]
        for trial in opened:
            if trial.outcome is None:
                self.run(trial)

    def leaves_scope(self, candidate: Candidate) -> bool:
        """Whether patches of a candidate touch files that the task does not let them touch."""
        return bool(scope_violations(self._task, self._session.folder, candidate))

    def evidence(self, trial_id: str) -> RunEvidence:
        """What a finished trial left behind."""
        return self._judge.evidence(trial_id)

    def _wait(self, trial: TrialState) -> Outcome:
        self.wait_for_any([trial])
        if trial.outcome is None:
            raise AssertionError("a trial that was waited for has an outcome")
        return trial.outcome

    def is_claimed(self, trial: TrialState) -> bool:
        """Whether an engine took the right to submit a trial."""
        return (self._session.folder.trial(trial.trial_id) / "claim").exists()

    def _claim(self, trial: TrialState) -> JobRequest:
        """Take the right to submit a prepared trial, once and for all engines."""
        trial_dir = self._session.folder.trial(trial.trial_id)
        plan = read_plan(trial_dir)
        excluded = excluded_nodes(self._session.state)
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
            time_limit_s=plan.total_timeout_s + GRACE_S,
            exclude=tuple(node for node in excluded if node not in trial.proposed.nodelist),
            nodelist=trial.proposed.nodelist,
        )

    def _adopt(self, trial: TrialState) -> FollowedJob:
        """Follow the job that an earlier engine submitted for a trial, recorded or not."""
        handle = trial.handle
        if handle is None:
            handle = self._unrecorded_handle(self._session.folder.trial(trial.trial_id))
            self._session.record(TrialSubmitted(trial_id=trial.trial_id, handle=handle))
        return self._follow(trial, handle)

    def _follow(self, trial: TrialState, handle: JobHandle) -> FollowedJob:
        job = FollowedJob(handle, self._clock.now())
        self._followed[trial.trial_id] = job
        return job

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
        return JobHandle(executor=executor, job_id=UNRECORDED, trial_dir=str(trial_dir), token=token)

    @contextlib.contextmanager
    def _ended_by_interrupt(self, trials: Sequence[TrialState]) -> Iterator[None]:
        """An interrupt at any moment ends the jobs, by the best handle that is known by then."""
        try:
            yield
        except (StopRequested, KeyboardInterrupt):
            self.cancel_all(trials)
            raise

    def _finish(self, trial: TrialState, outcome: Outcome) -> Outcome:
        self._session.record(TrialFinished(trial_id=trial.trial_id, outcome=outcome))
        self._followed.pop(trial.trial_id, None)
        # Not before the outcome is on disk: a successor of this engine would have to judge the run again.
        trial_dir = self._session.folder.trial(trial.trial_id)
        remove_tree(trial_dir / "work")
        remove_tree(trial_dir / "probe")
        return outcome
