"""The state of all watched jobs from one question to the scheduler, asked seldom, trusted with care."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from engine.schema.job import SchedulerFacts
from slurm.scheduler import pace
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.fields import names_job
from slurm.scheduler.lookup import SchedulerUnavailable, find_in_history, find_in_queue
from slurm.scheduler.records import Presence, Reading, Sighting
from slurm.scheduler.sacct import history_argv, parse_history, says_disabled
from slurm.scheduler.scontrol import job_argv, parse_job, says_unknown
from slurm.scheduler.squeue import parse_queue, queue_argv, queue_problem
from slurm.scheduler.states import parse_state
from slurm.scheduler.watched import WatchedJob

__all__ = ["Presence", "Reading", "SchedulerUnavailable", "SourceHealth", "StateSource"]

_LOOKUPS_PER_ROUND = 8
_EXTRA_GAP_S = 2.0
_LONGEST_INTERVAL_S = 600.0
_NO_ACCOUNTING = (
    "this cluster keeps no job accounting: how a job ended is read from squeue, scontrol and its own files"
)


@dataclasses.dataclass(frozen=True, slots=True)
class SourceHealth:
    """How well the scheduler answers.

    Attributes:
        answer_age_s: Seconds since its last answer; None = never answered.
        failures: Failed rounds in a row.
        problem: The last failure in a line; None when the last round was answered.
        calls_per_minute: Calls of all kinds within the last 60 s.
        accounting: Whether accounting works; None = not needed so far.
    """

    answer_age_s: float | None
    failures: int
    problem: str | None
    calls_per_minute: int
    accounting: bool | None


class StateSource:
    """Answers for the state of jobs; asks the scheduler at its own pace, for all jobs at once.

    Args:
        commands: Runs the programs.
        min_poll_s: Seconds between two rounds, at least (the site's floor).
        accounting: Whether accounting works here; None finds out when it is first needed.
        clock: Unix time, seconds.
    """

    def __init__(
        self,
        commands: SlurmCommands,
        *,
        min_poll_s: float,
        accounting: bool | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._commands = commands
        self._floor_s = min_poll_s
        self._accounting = accounting
        self._clock = clock
        self._jobs: dict[str, WatchedJob] = {}
        self._next_at = 0.0
        self._last_round_at = float("-inf")
        self._answered_at: float | None = None
        self._failures = 0
        self._problem: str | None = None
        self._notices: list[str] = []

    def watch(self, job_id: str, *, name: str | None = None, submitted_at: float | None = None) -> None:
        """Begin to ask about a job; again for a watched one changes nothing.

        Args:
            job_id: Slurm's id.
            name: Its name, where known: guards against ids that the cluster uses again.
            submitted_at: When it was submitted, unix seconds; None = just now, as far as pace is concerned.
        """
        if job_id in self._jobs:
            return
        now = self._clock()
        since = now if submitted_at is None else submitted_at
        self._jobs[job_id] = WatchedJob(job_id, name, since, submitted_at)
        if self._failures == 0:
            self._next_at = min(self._next_at, max(now, self._last_round_at + self._floor_s))

    def forget(self, job_id: str) -> None:
        """Ask no more about a job."""
        self._jobs.pop(job_id, None)

    def reading(self, job_id: str) -> Reading:
        """What is known about a job; asks the scheduler first when a round is due.

        Blocks for a few calls at most, each with its time limit. A job that is not watched is from now on.
        """
        self.watch(job_id)
        now = self._clock()
        # A clock that was set back must not silence us.
        if now >= self._next_at or self._next_at - now > _LONGEST_INTERVAL_S * 2:
            self._round(now)
        return self._jobs[job_id].reading(self._clock(), self._problem)

    def refresh_now(self, job_id: str) -> Reading:
        """Ask at once, for moments when a job's files already say that something ended.

        At most one extra round per 2 s; for one job the pause doubles with each until it is the usual one,
        and starts anew after a minute without. While the scheduler does not answer, nothing extra is asked.
        """
        self.watch(job_id)
        job = self._jobs[job_id]
        now = self._clock()
        usual_s = self._interval_s(now)
        if now - job.next_extra_at > max(60.0, usual_s):
            job.extra_gap_s = _EXTRA_GAP_S
        allowed = now >= max(job.next_extra_at, self._last_round_at + _EXTRA_GAP_S) and self._failures == 0
        if allowed and not job.settled:
            job.next_extra_at = now + job.extra_gap_s
            job.extra_gap_s = min(job.extra_gap_s * 2, usual_s)
            self._round(now)
        return job.reading(self._clock(), self._problem)

    def find(self, name: str, since: float) -> list[SchedulerFacts]:
        """Every job with exactly this name, of any state.

        Args:
            name: The job's name, without commas.
            since: When the first can have been submitted, unix seconds; bounds the search in accounting only.

        Raises:
            SchedulerUnavailable: the queue could not be read and accounting named no such job, so that
                one may exist.
        """
        now = self._clock()
        queued, problem = find_in_queue(self._commands, name, now)
        if queued or (problem is None and self._accounting is False):
            return queued
        if self._accounting is not False:
            recorded, disabled = find_in_history(self._commands, name, since, now)
            if disabled:
                self._note_no_accounting()
            if recorded:
                return recorded
        if problem is not None:
            raise SchedulerUnavailable(
                f"the scheduler does not answer ({problem})",
                hint="nothing was submitted or cancelled; try again when `squeue` answers",
            )
        return []

    def take_notices(self) -> tuple[str, ...]:
        """What a person should be told once; a second call gives nothing."""
        notices = tuple(self._notices)
        self._notices.clear()
        return notices

    def health(self) -> SourceHealth:
        """How well the scheduler answers, for display; asks nothing."""
        return SourceHealth(
            answer_age_s=None if self._answered_at is None else max(0.0, self._clock() - self._answered_at),
            failures=self._failures,
            problem=self._problem,
            calls_per_minute=self._commands.recent_calls(),
            accounting=self._accounting,
        )

    def _round(self, now: float) -> None:
        asked = [job for job in self._jobs.values() if not job.settled]
        if not asked:
            return
        self._last_round_at = now
        result = self._commands.run(*queue_argv())
        self._problem = queue_problem(result)
        if self._problem is not None:
            self._failures += 1
            pause = pace.backed_off_s(self._interval_s(now), self._failures)
            self._next_at = self._clock() + min(pause, max(_LONGEST_INTERVAL_S, self._floor_s))
            return
        self._failures = 0
        self._answered_at = now
        only = {job.job_id.partition("_")[0] for job in asked}
        sightings = parse_queue(result.stdout, now, only=only)
        missing = [job for job in asked if not _saw(job, sightings, now)]
        for job in missing:
            job.settle_if_ended()
        self._look_up([job for job in missing if not (job.settled or job.is_absent)], now)
        self._next_at = self._clock() + self._interval_s(now)

    def _look_up(self, missing: list[WatchedJob], now: float) -> None:
        """Ask one by one about jobs that the queue does not list, longest unasked first."""
        gone: dict[str, bool] = {}
        for job in sorted(missing, key=lambda job: job.looked_up_at)[:_LOOKUPS_PER_ROUND]:
            job.looked_up_at = now
            result = self._commands.run(*job_argv(job.job_id))
            if result.returncode is None and result.problem != "not found":
                self._problem = result.complaint
                break  # the others would fare no better
            if not (result.ok and _saw(job, parse_job(result.stdout, now), now)):
                # With exit code 0 the id belongs to another job. Sites that forbid scontrol say so otherwise.
                gone[job.job_id] = result.ok or says_unknown(result)
        if gone and self._accounting is not False:
            self._ask_history(gone, now)
        elif gone:
            self._count_misses(gone, now)

    def _ask_history(self, gone: dict[str, bool], now: float) -> None:
        """Look up in accounting what the controller does not know; `gone` says how sure that is."""
        since = min(self._jobs[job_id].history_since for job_id in gone)
        result = self._commands.run(*history_argv(since, job_ids=gone))
        if says_disabled(result):
            self._note_no_accounting()
        elif result.ok:
            self._accounting = True
        else:
            self._problem = result.complaint
        # A record that says "running" lags behind the controller, which has forgotten the job.
        ended = [seen for seen in parse_history(result.stdout if result.ok else "", now) if _is_final(seen)]
        answered = result.ok or self._accounting is False
        left = {job_id: sure and answered for job_id, sure in gone.items()}
        self._count_misses(
            {job_id: sure for job_id, sure in left.items() if not _saw(self._jobs[job_id], ended, now)}, now
        )

    def _count_misses(self, gone: dict[str, bool], now: float) -> None:
        for job_id, sure in gone.items():
            self._jobs[job_id].miss(now, sure=sure)

    def _note_no_accounting(self) -> None:
        if self._accounting is not False:
            self._accounting = False
            self._notices.append(_NO_ACCOUNTING)

    def _interval_s(self, now: float) -> float:
        jobs = [job for job in self._jobs.values() if not job.settled]
        since = min((now - job.since for job in jobs), default=float("inf"))
        waits = any(job.waits_for_start for job in jobs)
        return pace.interval_s(since, waits_for_start=waits, floor_s=self._floor_s)


def _is_final(sighting: Sighting) -> bool:
    return parse_state(sighting.facts.state).is_final


def _saw(job: WatchedJob, sightings: list[Sighting], now: float) -> bool:
    fitting = [seen for seen in sightings if names_job(seen.facts.job_id, job.job_id) and job.is_meant(seen)]
    if not fitting:
        return False
    # In a federation the job is listed as revoked by every cluster but the one that runs it.
    job.see(min(fitting, key=_is_final), now)
    return True
