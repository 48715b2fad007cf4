"""Jobs by name: the question before a submission is tried again."""

from __future__ import annotations

from engine.errors import InfrastructureError
from engine.schema.job import SchedulerFacts
from slurm.scheduler.command import SlurmCommands
from slurm.scheduler.sacct import history_argv, parse_history, says_disabled
from slurm.scheduler.squeue import parse_queue, queue_argv, queue_problem

_CLOCK_SKEW_S = 3600.0


class SchedulerUnavailable(InfrastructureError):
    """No program of the scheduler gave an answer that one could act on."""

    kind = "scheduler_unavailable"


def find_in_queue(commands: SlurmCommands, name: str, now: float) -> tuple[list[SchedulerFacts], str | None]:
    """Jobs that the controller knows by this name, and why it could not be asked, where it could not."""
    result = commands.run(*queue_argv(name))
    problem = queue_problem(result)
    if problem is not None:
        return [], problem
    found = (sighting.facts for sighting in parse_queue(result.stdout, now))
    return [facts for facts in found if facts.name == name], None


def find_in_history(
    commands: SlurmCommands, name: str, since: float, now: float
) -> tuple[list[SchedulerFacts], bool]:
    """Jobs that accounting knows by this name, and whether the site has no accounting at all."""
    result = commands.run(*history_argv(since - _CLOCK_SKEW_S, name=name))
    if not result.ok:
        return [], says_disabled(result)
    found = (sighting.facts for sighting in parse_history(result.stdout, now))
    return [facts for facts in found if facts.name == name], False
