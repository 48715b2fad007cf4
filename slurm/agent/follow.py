"""The agent on every node but the first: does what the head says, and leaves nothing when that is gone."""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any

from slurm.agent.address import HeadPlaces
from slurm.agent.claim import claim
from slurm.agent.launch import LaunchError, Meeting
from slurm.agent.loop import Loop
from slurm.agent.member import HeadLostError, Member, find_head
from slurm.agent.node import NodeIdentity
from slurm.agent.plan import LaunchPlan
from slurm.agent.ports import control_ports
from slurm.agent.preflight import Examination, examine
from slurm.agent.remote import describe
from slurm.agent.result import code_entries, rank_entry, write_exits
from slurm.agent.station import TICK_S, Station
from slurm.agent.stopping import StopRequest

FIND_HEAD_S = 60.0
"""Seconds for which the head is looked for."""


class Follower:
    """One node's agent under the orders of the head."""

    def __init__(self, station: Station, stop: StopRequest, examination: Examination) -> None:
        self._plan = station.plan
        self._station = station
        self._stop = stop
        self._examination = examination
        self._member: Member | None = None
        self._launch_error: str | None = None
        self._code: int | None = None
        self._has_finished = False
        self._told_signal = False

    def follow(self) -> None:
        """Join, then obey to the end.

        Raises:
            HeadLostError: the head is not there, or not any more.
            LeftoverError: a process cannot be ended.
        """
        plan, node = self._plan, self._station.node
        places = HeadPlaces(plan.folder / "job.json", plan.token, control_ports(plan.token), os.environ)
        places.resolve(node)
        sock = find_head(places, plan.token, node.rank, FIND_HEAD_S, lambda: self._stop.reason is not None)
        member = self._member = Member(self._station.loop, sock, self._describe)
        self._station.channel = member
        try:
            self._send_ready(member)
            while self._obey(member):
                self._station.pump(TICK_S)
                if self._stop.reason is not None and not self._told_signal:
                    self._told_signal = True
                    member.send("signal", reason=self._stop.reason)
        finally:
            self._finish()
            member.close()

    def _obey(self, member: Member) -> bool:
        """Carry out the orders that have arrived; False after the last one."""
        while (order := member.next_order()) is not None:
            kind = order["k"]
            if kind == "bye":
                return False
            if kind == "start":
                self._start(order)
            elif kind == "all_ended":
                self._station.trial.listener.send_stop()
            elif kind == "again":
                self._finish()
                self._again(member)
            elif kind == "stop":
                self._finish()
                self._report(member)
        if member.lost:
            raise HeadLostError("the head of the trial is gone: its connection closed, or it fell silent")
        return True

    def _describe(self) -> dict[str, Any]:
        trial = self._station.trial
        code = self._code if self._has_finished else trial.launcher_code()
        now_ns = time.monotonic_ns()
        return describe(trial.ranks, self._station.attempt, code, self._launch_error, now_ns)

    def _send_ready(self, member: Member) -> None:
        station = self._station
        member.send(
            "ready",
            name=station.node.name,
            host=station.node.host,
            socket=station.trial.listener.path,
            attempt=station.attempt,
            **self._examination.facts(),
        )

    def _start(self, order: dict[str, Any]) -> None:
        meeting = Meeting(self._station.node.rank, order["address"], order["port"])
        self._station.watching = True
        try:
            self._station.trial.start(meeting, ())
        except LaunchError as error:
            self._launch_error = str(error)

    def _again(self, member: Member) -> None:
        self._launch_error, self._code, self._has_finished = None, None, False
        self._station.renew()
        self._send_ready(member)

    def _finish(self) -> None:
        """End what runs on this node, once; the head is kept informed meanwhile."""
        if self._has_finished:
            return
        self._station.watching = False
        self._code = self._station.trial.finish(self._station.pump)
        self._has_finished = True
        problem = write_exits(self._plan, self._station.trial.ranks)
        if problem is not None:
            self._examination.notes.append(problem)

    def _report(self, member: Member) -> None:
        station, plan = self._station, self._plan
        member.send(
            "report",
            ranks=[rank_entry(plan, rank, station.node.rank) for rank in station.trial.ranks],
            longest_gap_s=station.longest_gap_s,
            notes=self._examination.notes,
            **code_entries(self._code),
        )


def follow(plan: LaunchPlan, node: NodeIdentity) -> None:
    """Run this node's part of a trial to its end.

    Raises:
        AlreadyRunError: this node's agent has run before.
        HeadLostError: the head is not there, or not any more.
        LeftoverError: a process of the trial cannot be ended.
    """
    with contextlib.suppress(OSError):  # the examination says so to the head
        claim(plan, node)
    stop = StopRequest(plan.folder)
    with contextlib.ExitStack() as stack:
        loop = Loop()
        stack.callback(loop.close)
        stack.enter_context(stop.signals())
        examination = examine(plan, node, os.environ)
        station = Station(plan, node, loop)
        follower = Follower(station, stop, examination)
        stack.callback(station.trial.listener.close)  # where it never came to a start
        follower.follow()
