"""The seams: run a job, propose ideas, tell the time. Each has at least two implementations."""

from __future__ import annotations

from typing import Protocol

from engine.schema.job import AllocationUse, JobHandle, JobRequest, JobStatus


class JobExecutor(Protocol):
    """Runs trials somewhere; never blocks for longer than a scheduler call."""

    def submit(self, request: JobRequest) -> JobHandle:
        """Start a job.

        Raises:
            InfrastructureError: the job could not be handed over.
        """
        ...

    def poll(self, handle: JobHandle) -> JobStatus:
        """Read a job's state; works for handles of an earlier engine process too."""
        ...

    def cancel(self, handle: JobHandle) -> None:
        """End a job and everything it started; a finished job is left alone."""
        ...

    def release(self) -> None:
        """Give back what is held between trials; nothing where every trial has an allocation of its own."""
        ...

    def usage(self) -> tuple[AllocationUse, ...]:
        """Every allocation held across trials, as far as known now; the same answer when asked again."""
        ...


class Clock(Protocol):
    """Time, so that tests can run the engine in virtual time."""

    def now(self) -> float:
        """Unix time, seconds."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
