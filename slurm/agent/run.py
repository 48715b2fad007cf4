"""One trial from launch to result.json, as seen from one node."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

from slurm.agent.address import own_addresses
from slurm.agent.claim import claim
from slurm.agent.follow import follow
from slurm.agent.head import ControlPortError, Head
from slurm.agent.launch import adopt_orphans
from slurm.agent.lead import Lead
from slurm.agent.loop import Loop
from slurm.agent.merge import final_end, node_entries, rank_entries
from slurm.agent.node import NodeIdentity, identify
from slurm.agent.plan import LaunchPlan, load_plan
from slurm.agent.preflight import Examination, examine
from slurm.agent.result import Ending, ResultLostError, whole_result, write_exits, write_result
from slurm.agent.station import TICK_S, Station
from slurm.agent.stopping import StopRequest

_FAREWELL_S = 2.0


def run(spec_path: Path) -> int:
    """Run this node's part of the trial of a spec.json; 0 when the trial's result was written.

    Raises:
        SpecError: the spec cannot be used.
        AlreadyRunError: an agent has started this trial before.
        HeadLostError: on any node but the first: the first one's agent is not there, or not any more.
        LeftoverError: a process of the trial cannot be ended; there is no result then.
        ResultLostError: the disk took no result.
    """
    plan = load_plan(spec_path)
    node = identify(os.environ)
    if node.local_task != 0:
        print("slurm.agent: another task of this node runs the trial", file=sys.stderr)
        return 0
    adopt_orphans()
    if node.rank != 0:
        follow(plan, node)
    else:
        _lead(plan, node)
    return 0


def _lead(plan: LaunchPlan, node: NodeIdentity) -> None:
    with contextlib.ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        problems: list[str] = []
        head = _open_channel(plan, node, loop, problems)
        if head is not None:
            stack.callback(head.close)
        _claim(plan, node, head)
        started_at, started = time.time(), time.monotonic()
        stop = StopRequest(plan.folder)
        stack.enter_context(stop.signals())
        station = Station(plan, node, loop)
        stack.callback(station.trial.listener.close)
        examination = examine(plan, node, os.environ)
        examination.errors += problems
        lead = Lead(station, head, stop, examination)
        station.channel, station.counts = head, lead.counts
        lead.run()
        wall_s = time.monotonic() - started
        ending = Ending(
            final_end(lead, stop), lead.returncode, lead.launch_error, started_at, started_at + wall_s, wall_s
        )
        _write(lead, examination, ending)
        _dismiss(lead)


def _open_channel(plan: LaunchPlan, node: NodeIdentity, loop: Loop, problems: list[str]) -> Head | None:
    """The channel to the other nodes; without a free port the trial fails its examination."""
    if node.count == 1:
        return None
    try:
        return Head(loop, plan.token, node.count)
    except ControlPortError as error:
        problems.append(str(error))
        return None


def _claim(plan: LaunchPlan, node: NodeIdentity, head: Head | None) -> None:
    control = None if head is None else {"addresses": own_addresses(), "port": head.port}
    try:
        claim(plan, node, control)
    except OSError as error:
        raise ResultLostError(f"{plan.folder}: cannot be written: {error.strerror or error}") from error


def _write(lead: Lead, examination: Examination, ending: Ending) -> None:
    problem = write_exits(lead.plan, lead.station.trial.ranks)
    if problem is not None:
        examination.notes.append(problem)
    result = whole_result(
        lead.plan, lead.station.node, ending, node_entries(lead, examination), rank_entries(lead)
    )
    write_result(lead.plan, result, lead.station.pump)


def _dismiss(lead: Lead) -> None:
    """Let the other nodes go: the result is there."""
    head = lead.head
    if head is None:
        return
    head.tell("bye")
    deadline = time.monotonic() + _FAREWELL_S
    while not head.is_flushed() and time.monotonic() < deadline:
        lead.station.pump(TICK_S)
