"""The agent of the first node: gathers the others, starts, decides when to end, ends."""

from __future__ import annotations

import re
import time
from typing import Any

from slurm.agent.address import best_address
from slurm.agent.head import Head
from slurm.agent.launch import LaunchError, Meeting
from slurm.agent.ports import PortError, free_port
from slurm.agent.preflight import Examination
from slurm.agent.remote import RemoteNode
from slurm.agent.station import TICK_S, Station
from slurm.agent.stopping import StopRequest
from slurm.agent.watch import Watchdog, WatchedRank

GATHER_S = 90.0
"""Seconds that the other nodes get to appear: longer than they look for the head."""

REPORT_S = 20.0
"""Seconds from the order to stop to the report of each node."""

_SIGNAL_S = 1.0
"""Seconds that a signal to end gets to arrive here once the launchers have gone without a reason."""

_ATTEMPTS = 3
_LOG_BYTES = 64 * 1024
_PORT_IN_USE = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


class Lead:
    """The decisions of a trial. `head` is None on a single node.

    `ended` and `launch_error` are as in result.json, `failed_ns` says when the first failure was seen.
    """

    def __init__(
        self, station: Station, head: Head | None, stop: StopRequest, examination: Examination
    ) -> None:
        self.plan = station.plan
        self.station = station
        self.head = head
        self.ended = "exited"
        self.launch_error: str | None = None
        self.returncode: int | None = None
        self.failed_ns: int | None = None
        self.others: list[RemoteNode] = []
        self._stop = stop
        self._examination = examination
        self._first_failure: int | None = None
        self._ports: set[int] = set()

    def run(self) -> None:
        """Everything up to the moment in which nothing of the trial runs any more.

        Raises:
            LeftoverError: a process of this node cannot be ended.
        """
        try:
            if self._may_start():
                while not self._attempt() and self._begins_again():
                    pass
        finally:
            self._tell("stop", reason=self.ended)
            code = self._finish()
        self.returncode = code if self._first_failure is None else self._first_failure
        self._wait_for_reports()

    def counts(self) -> dict[str, int]:
        """Updates of every rank, for the heartbeat."""
        counts = self.station.own_counts()
        for other in self.others:
            counts.update({str(rank.rank): rank.updates for rank in other.ranks})
        return counts

    def _may_start(self) -> bool:
        """Whether all nodes are there and fit the plan; `ended` says why not."""
        reason = self._stop.asked() or self._gather() or self._stop.asked()
        if reason is not None:
            self.ended = reason
            return False
        errors: dict[str, list[str]] = {}
        found = [(0, self.station.node.name, self._examination.errors)]
        for state in self.head.ready() if self.head is not None else ():
            facts = state.facts or {}
            found.append((state.rank, str(facts.get("name")), facts.get("errors", [])))
        for rank, name, texts in found:
            for text in texts:
                errors.setdefault(text, []).append(f"node {rank} ({name})")
        if not errors:
            return True
        self.ended = "preflight_failed"
        alone = self.station.node.count == 1
        lines = [text if alone else f"{', '.join(where)}: {text}" for text, where in errors.items()]
        self.launch_error = "; ".join(lines)
        return False

    def _gather(self) -> str | None:
        """Wait until every other node is ready for the present attempt."""
        head = self.head
        if head is None:
            return None
        deadline = time.monotonic() + GATHER_S
        while len(head.ready()) < len(head.nodes):
            self.station.pump(TICK_S)
            self._take_signals()
            if self._stop.asked() is not None:
                return self._stop.reason
            if head.lost() or time.monotonic() > deadline:
                for state in head.nodes.values():
                    if state.facts is None:
                        state.lost = state.lost or f"its agent did not appear within {GATHER_S:.0f} s"
                return "node_lost"
        return None

    def _attempt(self) -> bool:
        """Start and watch; False when all of it has to be done again with another port."""
        head = self.head
        states = [] if head is None else list(head.nodes.values())
        self.others = [RemoteNode(state, self.plan, self.station.attempt) for state in states]
        try:
            address = best_address(state.reached or "" for state in states)
            port = free_port(address, frozenset(self._ports))
            self._ports.add(port)
            self._tell("start", address=address, port=port)
            self.station.trial.start(Meeting(0, address, port), self._roster())
        except (LaunchError, PortError) as error:
            self.ended, self.launch_error = "launch_failed", str(error)
            return True
        self.ended = self._watch()
        if not self._port_was_taken(port):
            return True
        self._examination.notes.append(f"port {port} was taken by somebody else: started again with another")
        return False

    def _roster(self) -> list[dict[str, Any]]:
        """Name and socket of each node, in the order of their ranks."""
        own = {"name": self.station.node.name, "socket": self.station.trial.listener.path}
        others = [] if self.head is None else [state.facts or {} for state in self.head.nodes.values()]
        return [own, *({"name": facts.get("name"), "socket": facts.get("socket")} for facts in others)]

    def _watch(self) -> str:
        """Serve until the launchers end or must be ended; the reason as in result.json."""
        ranks: list[WatchedRank] = [*self.station.trial.ranks]
        ranks += [rank for other in self.others for rank in other.ranks]
        watchdog = Watchdog(self.plan, ranks, time.monotonic_ns())
        self.station.on_pause = lambda gap_s: watchdog.resumed(time.monotonic_ns(), int(gap_s * 1e9))
        self.station.watching = True
        try:
            while not self._launchers_ended(watchdog):
                self.station.pump(TICK_S)
                self._take_signals()
                for other in self.others:
                    other.refresh()
                self._stop_probes(watchdog)
                reason = (
                    self._stop.asked() or self._missing(watchdog) or watchdog.verdict(time.monotonic_ns())
                )
                if reason is not None:
                    return reason
            return "launch_failed" if self.launch_error is not None else self._whose_end(watchdog)
        finally:
            self.station.watching = False
            self.failed_ns = watchdog.failed_ns

    def _whose_end(self, watchdog: Watchdog) -> str:
        """Why the launchers are gone: a scheduler's signal may reach them a moment before this agent."""
        deadline = time.monotonic() + _SIGNAL_S
        while not (watchdog.all_ended() or self._stop.asked() or self._has_reason()):
            if time.monotonic() > deadline:
                break
            self.station.pump(TICK_S)
            self._take_signals()
        return "exited" if watchdog.all_ended() else self._stop.reason or "exited"

    def _has_reason(self) -> bool:
        """Whether a rank of this node said why it went."""
        return any(rank.exception for rank in self.station.trial.ranks)

    def _launchers_ended(self, watchdog: Watchdog) -> bool:
        """Whether all launchers have ended, or one could not be started; tells the watchdog of each."""
        trial = self.station.trial
        own_code = trial.launcher_code()
        if trial.is_started_everywhere or not self.others:
            return own_code is not None
        ends = [(own_code, trial.all_ended())]
        for rank, other in enumerate(self.others, start=1):
            if other.launch_error is not None:
                self.launch_error = f"node {rank}: {other.launch_error}"
                return True
            ends.append((other.code, other.all_ended()))
        failures = [code for code, _ in ends if code is not None and code != 0]
        if failures and self._first_failure is None:
            self._first_failure = failures[0]
        has_left = any(code == 0 and not is_complete for code, is_complete in ends)
        watchdog.note_launchers(bool(failures), has_left, time.monotonic_ns())
        return all(code is not None for code, _ in ends)

    def _stop_probes(self, watchdog: Watchdog) -> None:
        """When all ranks of all nodes have ended, tell them so: they wait for it."""
        if not watchdog.all_ended():
            watchdog.stop_sent_ns = None  # a rank's first process had ended, another one took its place
        elif watchdog.stop_sent_ns is None:
            self.station.trial.listener.send_stop()
            self._tell("all_ended")
            watchdog.stop_sent_ns = time.monotonic_ns()

    def _missing(self, watchdog: Watchdog) -> str | None:
        """A node is gone: the reason, unless the trial had failed before."""
        if self.head is None or not self.head.lost():
            return None
        return "exited" if watchdog.failed_ns is not None else "node_lost"

    def _port_was_taken(self, port: int) -> bool:
        """Whether this attempt failed only because somebody else took the port meanwhile."""
        if self.ended != "exited" or self.station.attempt + 1 >= _ATTEMPTS or any(self.counts().values()):
            return False
        exceptions = [str(rank.exception) for rank in self.station.trial.ranks if rank.exception]
        text = "\n".join([self.station.trial.log_tail(_LOG_BYTES), *exceptions])
        return _PORT_IN_USE.search(text) is not None and str(port) in text

    def _begins_again(self) -> bool:
        """End everything everywhere and wait until every node is ready once more; `ended` says why not."""
        for state in self.head.nodes.values() if self.head is not None else ():
            state.facts = None
        self._tell("again")
        self._finish()
        self._first_failure = self.failed_ns = None
        self.station.renew()
        reason = self._gather()
        self.ended = reason or self.ended
        return reason is None

    def _finish(self) -> int | None:
        return self.station.trial.finish(self.station.pump)

    def _wait_for_reports(self) -> None:
        states = [] if self.head is None else list(self.head.nodes.values())
        deadline = time.monotonic() + REPORT_S
        while time.monotonic() < deadline and any(state.is_awaited for state in states):
            self.station.pump(TICK_S)
        for state in states:
            if state.is_awaited:
                state.lost = f"its agent did not report within {REPORT_S:.0f} s of the order to stop"

    def _take_signals(self) -> None:
        """What other nodes were told by their scheduler counts for all."""
        for reason in self.head.signals if self.head is not None else ():
            self._stop.ask(reason)

    def _tell(self, kind: str, **content: Any) -> None:
        if self.head is not None:
            self.head.tell(kind, **content)
