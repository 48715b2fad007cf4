"""What every executor must do; a test class per executor inherits this and supplies the two fixtures."""

from __future__ import annotations

import abc
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from engine.errors import InfrastructureError
from engine.ports import JobExecutor
from engine.schema.job import JobHandle, JobRequest, JobState, JobStatus
from tests.slurm.trial_folder import wait_for

TrialKind = Literal["short", "endless", "failing"]
Requests = Callable[[TrialKind], JobRequest]

_ORDER = [JobState.PENDING, JobState.RUNNING, JobState.FINISHED]


class JobExecutorContract(abc.ABC):
    """The promises of `engine.ports.JobExecutor`, each as a test."""

    limit_s = 30.0
    """How long a state may take to arrive."""

    @abc.abstractmethod
    def make_executor(self) -> JobExecutor:
        """A new executor over the same jobs, as a new engine process would make it."""

    @pytest.fixture
    @abc.abstractmethod
    def request_for(self, tmp_path: Path) -> Requests:
        """A function that prepares a trial which ends soon, never, or badly; once per kind."""

    def wait_for_state(self, executor: JobExecutor, handle: JobHandle, wanted: JobState) -> JobStatus:
        """Poll until the state arrives; another final state is a failure."""

        def arrived() -> JobStatus | None:
            status = executor.poll(handle)
            if status.state.is_terminal and status.state is not wanted:
                raise AssertionError(f"{status.state} instead of {wanted}: {status.reason}")
            return status if status.state is wanted else None

        status = wait_for(arrived, f"{handle.job_id} is {wanted}", self.limit_s)
        assert isinstance(status, JobStatus)
        return status

    def test_states_only_move_forward(self, request_for: Requests) -> None:
        """A job goes from pending over running to finished, and readings are stamped in order."""
        executor = self.make_executor()
        handle = executor.submit(request_for("short"))
        seen: list[JobStatus] = []

        def finished() -> bool:
            seen.append(executor.poll(handle))
            return seen[-1].state.is_terminal

        wait_for(finished, "the job ends", self.limit_s)
        ranks = [_ORDER.index(status.state) for status in seen]
        assert ranks == sorted(ranks)
        assert seen[-1].state is JobState.FINISHED
        stamps = [status.as_of for status in seen]
        assert stamps == sorted(stamps)

    def test_finished_means_that_a_result_exists(self, request_for: Requests) -> None:
        """`finished` is said only when result.json is there."""
        executor = self.make_executor()
        request = request_for("short")
        self.wait_for_state(executor, executor.submit(request), JobState.FINISHED)
        assert (Path(request.trial_dir) / "result.json").exists()

    def test_failing_training_is_finished(self, request_for: Requests) -> None:
        """A training that crashes is a finished job: the candidate's failure is not the infrastructure's."""
        executor = self.make_executor()
        self.wait_for_state(executor, executor.submit(request_for("failing")), JobState.FINISHED)

    def test_handle_identifies_the_submission(self, request_for: Requests) -> None:
        """The handle carries the request's folder and token, and survives being written to disk."""
        executor = self.make_executor()
        request = request_for("short")
        handle = executor.submit(request)
        assert (handle.trial_dir, handle.token) == (request.trial_dir, request.token)
        again = JobHandle.model_validate_json(handle.model_dump_json())
        assert again == handle
        self.wait_for_state(executor, again, JobState.FINISHED)

    def test_new_executor_adopts_a_job(self, request_for: Requests) -> None:
        """An executor that never saw the submission reads the state and can cancel."""
        handle = self.make_executor().submit(request_for("endless"))
        other = self.make_executor()
        self.wait_for_state(other, handle, JobState.RUNNING)
        other.cancel(handle)
        self.wait_for_state(self.make_executor(), handle, JobState.CANCELLED)

    def test_cancel_of_a_new_job(self, request_for: Requests) -> None:
        """A job can be cancelled at once, whether it has started or not, and more than once."""
        executor = self.make_executor()
        handle = executor.submit(request_for("endless"))
        executor.cancel(handle)
        self.wait_for_state(executor, handle, JobState.CANCELLED)
        executor.cancel(handle)
        assert executor.poll(handle).state is JobState.CANCELLED

    def test_cancel_leaves_a_finished_job_alone(self, request_for: Requests) -> None:
        """Cancelling too late changes nothing."""
        executor = self.make_executor()
        handle = executor.submit(request_for("short"))
        self.wait_for_state(executor, handle, JobState.FINISHED)
        executor.cancel(handle)
        assert executor.poll(handle).state is JobState.FINISHED

    def test_trial_is_submitted_once(self, request_for: Requests) -> None:
        """A second submission of a trial is refused and disturbs nothing."""
        executor = self.make_executor()
        request = request_for("short")
        handle = executor.submit(request)
        with pytest.raises(InfrastructureError):
            self.make_executor().submit(request)
        self.wait_for_state(executor, handle, JobState.FINISHED)

    def test_other_token_is_another_job(self, request_for: Requests) -> None:
        """A handle of another submission in the same folder is lost and cannot end this one."""
        executor = self.make_executor()
        handle = executor.submit(request_for("endless"))
        self.wait_for_state(executor, handle, JobState.RUNNING)
        stranger = handle.model_copy(update={"token": "another"})
        assert executor.poll(stranger).state is JobState.LOST
        executor.cancel(stranger)
        assert executor.poll(handle).state is JobState.RUNNING
        executor.cancel(handle)
        self.wait_for_state(executor, handle, JobState.CANCELLED)
        assert executor.poll(stranger).state is JobState.LOST
