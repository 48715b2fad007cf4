"""Why a job waits or ended, in words that need no manual."""

from __future__ import annotations

import re
import time

from slurm.scheduler.states import parse_state

# First match wins; beginnings of Slurm's reason words.
_WAITING: tuple[tuple[str, str], ...] = (
    ("Priority", "waits: jobs with a higher priority are in front"),
    ("Resources", "waits until enough nodes are free"),
    ("ReqNodeNotAvail", "waits: nodes that it could use are down, drained or reserved (often maintenance)"),
    ("Nodes_required_for_job_are_DOWN", "waits: nodes that it could use are down, drained or reserved"),
    ("NodeDown", "waits: a node that it needs is down"),
    ("Reservation", "waits for its reservation"),
    ("PartitionTimeLimit", "will not start: it asks for more time than the partition allows"),
    ("PartitionNodeLimit", "will not start: it asks for more nodes than the partition allows"),
    ("PartitionDown", "waits: the partition is down"),
    ("PartitionInactive", "waits: the partition takes no jobs"),
    ("PartitionConfig", "will not start: it asks for what the partition does not have"),
    ("BeginTime", "waits for its earliest start (a requeued job has to pause for some minutes)"),
    ("DependencyNeverSatisfied", "will not start: a job that it depends on failed"),
    ("Dependency", "waits for another job"),
    ("JobHeldUser", "is held; `scontrol release` lets it start"),
    ("JobHeldAdmin", "is held by an administrator"),
    ("launch_failed_requeued_held", "could not be launched and is held; `scontrol release` lets it start"),
    ("job_requeued_in_held_state", "was requeued and is held; `scontrol release` lets it start"),
    ("AccountNotAllowed", "will not start: the account may not use this partition"),
    ("QOSNotAllowed", "will not start: the partition does not take this QOS"),
    ("InvalidAccount", "will not start: the account is not known"),
    ("InvalidQOS", "will not start: the QOS is not known"),
    ("BadConstraints", "will not start: no node fits the constraints"),
    ("Licenses", "waits for licenses"),
    ("JobArrayTaskLimit", "waits: as many tasks of its array run as are allowed at once"),
    ("NodesBusy", "waits until its nodes are free"),
    ("None", "waits: the scheduler has not looked at it yet"),
)
_LIMIT = re.compile(r"(QOS|Assoc)(Max|Grp|Min)(.*)")
_OF_WHOM = {"QOS": "its QOS", "Assoc": "its account"}
_OF_WHAT = (
    ("gres", "GPUs"),
    ("wall", "time"),
    ("minutes", "computing time"),
    ("cpu", "CPUs"),
    ("mem", "memory"),
    ("node", "nodes"),
    ("submit", "submitted jobs"),
    ("jobs", "jobs at once"),
)
_STATES: dict[str, str] = {
    "RUNNING": "runs",
    "CONFIGURING": "has nodes, which are being prepared",
    "POWER_UP_NODE": "has nodes, which are being switched on",
    "COMPLETING": "has ended; its nodes are being cleaned up",
    "SUSPENDED": "is suspended: it stands still and its times are worth nothing",
    "STOPPED": "is stopped: it stands still and its times are worth nothing",
    "REQUEUE_HOLD": "was requeued and is held; `scontrol release` lets it start",
    "SPECIAL_EXIT": "was requeued and is held; `scontrol release` lets it start",
    "COMPLETED": "ended without an error",
    "FAILED": "ended with an error",
    "TIMEOUT": "was ended at its time limit",
    "DEADLINE": "was ended at its deadline",
    "OUT_OF_MEMORY": "was killed for using more host memory than it had asked for",
    "CANCELLED": "was cancelled",
    "REVOKED": "was taken back by the scheduler",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "got a node that did not start",
    "RECONFIG_FAIL": "got a node that could not be set up",
    "LAUNCH_FAILED": "could not be launched on its nodes",
    "PREEMPTED": "had to make room for another job",
}


def sentence(state: str, reason: str | None, start_estimate: float | None = None) -> str:
    """A job's situation in plain words; Slurm's own words stay visible where they say more.

    Args:
        state: The scheduler's word.
        reason: The scheduler's reason; None = none given.
        start_estimate: When a waiting job is expected to start, unix seconds.
    """
    known = parse_state(state)
    if known.phase == "waiting" and known.word not in _STATES:
        text = _why_waiting(reason or "None")
        return f"{text}; expected to start {_when(start_estimate)}" if start_estimate else text
    text = _STATES.get(known.word, f"is in the state {state.strip() or 'unknown'}")
    if known.is_final and reason and reason.lower() != "none" and known.word != "COMPLETED":
        text += f" (Slurm's reason: {reason})"
    if known.by_uid is not None:
        text += f" by the user with the number {known.by_uid}"
    return text


def never_starts(reason: str | None) -> bool:
    """Whether a waiting job with this reason needs a change of the request, or a person, to start."""
    said = _why_waiting(reason or "None")
    return said.startswith("will not start") or "is held" in said


def _why_waiting(reason: str) -> str:
    limit = _LIMIT.match(reason)
    if limit is not None:
        whom, kind, rest = limit.groups()
        what = next((name for word, name in _OF_WHAT if word in rest.lower()), rest or "something")
        return f"{_of_limit(kind, rest, what, _OF_WHOM[whom])} ({reason})"
    for beginning, text in _WAITING:
        if reason.startswith(beginning):
            detail = "" if reason in (beginning, "None") else f" ({reason})"
            return f"{text}{detail}"
    return f"waits; Slurm's reason: {reason}"


def _of_limit(kind: str, rest: str, what: str, whose: str) -> str:
    if kind == "Grp" and "Minutes" in rest:
        return f"will not start before {whose} gets more: its budget of {what} is used up"
    if kind == "Grp":
        return f"waits: running jobs use up the limit of {whose} on {what}"
    if kind == "Min":
        return f"will not start: it asks for less than the smallest amount of {what} in {whose}"
    if rest.startswith(("Jobs", "Submit")) or (
        "Per" in rest and "PerJob" not in rest and "PerNode" not in rest
    ):
        return f"waits: the limit of {whose} on {what} is reached"
    return f"will not start, or not soon: it asks for more {what} than {whose} allows"


def _when(at: float) -> str:
    moment = time.localtime(at)
    if time.strftime("%Y-%m-%d", moment) == time.strftime("%Y-%m-%d"):
        return time.strftime("at %H:%M", moment)
    return time.strftime("on %Y-%m-%d at %H:%M", moment)
