"""A cluster on paper at the executor port, in virtual time; it outlives the engines that use it."""

from __future__ import annotations

import hashlib
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from engine.errors import InfrastructureError
from engine.schema.base import Scalar
from engine.schema.job import (
    AllocationUse,
    JobHandle,
    JobRequest,
    JobState,
    JobStatus,
    Loss,
    SchedulerFacts,
)
from engine.schema.plan import LaunchPlan
from tests.study import wire
from tests.study.surface import BASE_STEP_S, KNOBS, Surface, read_configuration

BYTES_PER_GIB = 1 << 30
_LONGEST = 64
_BASELINE = {name: values[0] for name, (_, values) in KNOBS.items()}


class Death(BaseException):
    """The engine's process is gone; nothing catches it."""


class VirtualClock:
    """Clock port whose time passes only by sleeping."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._now = now

    def now(self) -> float:
        """Unix time, seconds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Let time pass; polls are made coarse, since nothing real waits."""
        self._now += max(seconds, 1.0)


@dataclass
class _Job:
    plan: LaunchPlan
    run: wire.Run
    submitted_at: float
    ends_at: float
    cancelled: bool = False
    lost: bool = False


@dataclass
class SimulatedExecutor:
    """JobExecutor over a response surface.

    lost: trials whose job vanishes; refuses: trials whose submission raises; endings: how a trial ended
    in the agent's words; losses: why a trial's job vanishes; facts: what a scheduler says of a trial that was
    submitted and ends at given times; shapes: changes a trial's run; uses: what usage() answers;
    queue_s: seconds that every job waits; hook: called with the name of a call and a trial before ("submit",
    "poll", "cancel") and after ("submitted") it: it may raise Death.
    """

    surface: Surface
    clock: VirtualClock
    lost: Callable[[str], bool] = lambda trial_id: False
    refuses: Callable[[str], bool] = lambda trial_id: False
    endings: Callable[[str], str] = lambda trial_id: "exited"
    losses: Callable[[str], Loss | None] = lambda trial_id: None
    facts: Callable[[str, float, float], SchedulerFacts | None] = lambda trial_id, submitted, ends: None
    shapes: Callable[[str, wire.Run], wire.Run] = lambda trial_id, run: run
    uses: list[AllocationUse] = field(default_factory=list)
    queue_s: float = 0.0
    requests: list[JobRequest] = field(default_factory=list)
    hook: Callable[[str, str], None] = lambda call, trial_id: None
    submitted: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    configurations: dict[str, dict[str, Scalar]] = field(default_factory=dict)
    _jobs: dict[str, _Job] = field(default_factory=dict)
    _runs: Counter[str] = field(default_factory=Counter)

    def submit(self, request: JobRequest) -> JobHandle:
        """Start a job; a second one in the same folder is refused, as by every real executor."""
        self.hook("submit", request.trial_id)
        if self.refuses(request.trial_id):
            raise InfrastructureError("the scheduler does not answer", hint="try again")
        if request.token in self._jobs:
            raise InfrastructureError("the trial was submitted before", file=request.trial_dir)
        plan = LaunchPlan.model_validate_json(Path(request.spec_path).read_text())
        config = tomllib.loads((Path(plan.workdir) / "config.toml").read_text())
        configuration = read_configuration(config)
        run = self.shapes(request.trial_id, self._run(plan, configuration))
        self.requests.append(request)
        self.submitted.append(request.trial_id)
        self.configurations[request.trial_id] = configuration
        now = self.clock.now()
        lost = self.lost(request.trial_id) or self.losses(request.trial_id) is not None
        self._jobs[request.token] = _Job(plan, run, now, now + self.queue_s + run.wall_s, lost=lost)
        self.hook("submitted", request.trial_id)
        return JobHandle(
            executor="simulated", job_id=str(len(self._jobs)), trial_dir=plan.trial_dir, token=plan.token
        )

    def poll(self, handle: JobHandle) -> JobStatus:
        """The job's state; result.json appears when its time has come."""
        job = self._jobs.get(handle.token)
        self.hook("poll", Path(handle.trial_dir).name)
        if job is None:
            return self._status(JobState.LOST, "no job of this trial was ever submitted")
        name = job.plan.trial_id
        facts = self.facts(name, job.submitted_at, job.ends_at)
        if job.cancelled:
            return self._status(JobState.CANCELLED, facts=facts)
        if self.clock.now() < job.submitted_at + self.queue_s:
            return self._status(JobState.PENDING)
        if self.clock.now() < job.ends_at:
            return self._status(JobState.RUNNING)
        if job.lost:
            loss = self.losses(name)
            return self._status(JobState.LOST, "the node went away", loss=loss, facts=facts)
        if not (Path(handle.trial_dir) / "result.json").exists():
            wire.write_trial(job.plan, job.run)
        return self._status(JobState.FINISHED, facts=facts)

    def cancel(self, handle: JobHandle) -> None:
        """End a job."""
        self.hook("cancel", Path(handle.trial_dir).name)
        job = self._jobs.get(handle.token)
        if job is not None and self.clock.now() < job.ends_at:
            job.cancelled = True
            self.cancelled.append(job.plan.trial_id)

    def release(self) -> None:
        """Nothing is held between trials."""

    def usage(self) -> tuple[AllocationUse, ...]:
        """What a test says is held between trials."""
        return tuple(self.uses)

    def _status(
        self,
        state: JobState,
        reason: str | None = None,
        loss: Loss | None = None,
        facts: SchedulerFacts | None = None,
    ) -> JobStatus:
        return JobStatus(state=state, reason=reason, as_of=self.clock.now(), loss=loss, scheduler=facts)

    def _run(self, plan: LaunchPlan, configuration: dict[str, Scalar]) -> wire.Run:
        """The run's noise depends on kind, configuration and how often it ran, not on the trial's number."""
        surface = self.surface
        key = plan.trial_id[0] + repr(sorted(configuration.items()))
        self._runs[key] += 1
        seed = hashlib.sha256(f"{key}{self._runs[key]}".encode()).digest()
        rng = np.random.default_rng(list(seed))
        between = surface.noise_sd * rng.standard_normal()
        # From the last update backwards, so that one more update of warm-up changes nothing in the window.
        within = 0.3 * surface.noise_sd * rng.standard_normal(_LONGEST)[plan.total_updates - 1 :: -1]
        within[0] = 0.0
        cheat = surface.cheats is not None and configuration[surface.cheats[0]] == surface.cheats[1]
        drift = surface.drifts is not None and configuration[surface.drifts[0]] == surface.drifts[1]
        log_step = np.log(BASE_STEP_S) - surface.log_speedup(configuration) + between
        steps = np.exp(log_step + within) * (0.5 if cheat else 1.0)
        ulp = 1e-6 if plan.probe.perturb_ulp_seed is not None else 0.0
        losses = [5.0 - 0.1 * i + ulp + (0.3 if drift else 0.0) for i in range(plan.total_updates)]
        return wire.Run(
            step_times_s=[float(step) for step in steps],
            losses=losses,
            micro_batch=int(configuration["micro_batch_size"]),
            peak_bytes=int(min(surface.memory_gib(configuration), 2.0) * BYTES_PER_GIB),
            started_at=self.clock.now() + self.queue_s,
            tokens_share=0.5 if cheat else 1.0,
            exception=self._exception(configuration),
            ended=self.endings(plan.trial_id),
        )

    def _exception(self, configuration: dict[str, Scalar]) -> dict[str, object] | None:
        surface, limit = self.surface, 2 * BYTES_PER_GIB
        if surface.baseline_fails and configuration == _BASELINE:
            return wire.crash(BYTES_PER_GIB // 2)
        fate = surface.fate(configuration)
        if fate == "conflict":
            return wire.conflict(BYTES_PER_GIB // 2)
        if fate == "out_of_memory":
            needed = int(surface.memory_gib(configuration) * BYTES_PER_GIB)
            held = limit - (64 << 20)
            return wire.out_of_memory(held, needed - held)
        return None
