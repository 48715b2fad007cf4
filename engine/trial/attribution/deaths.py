"""Ranks that died of a signal, without an exception."""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from dataclasses import dataclass

from engine.schema.evidence import RunEvidence
from engine.schema.trial import EvidenceLine
from engine.trial.attribution.logs import LogLine

_FIRST_OBSERVED = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: \d+\)")
_WORKER = re.compile(r"DataLoader worker \(pid\(?s?\)? ?\d+\) is killed by signal: (Killed|Bus error)")
_SHELL_BASE = 128
# SIGUSR2 is the end of the allocation that we ask the scheduler to announce: it reaches every process.
_SENT_BY_US = frozenset({signals.SIGTERM, signals.SIGINT, signals.SIGHUP, signals.SIGUSR2})


@dataclass(frozen=True)
class Death:
    """A process that a signal ended."""

    rank: int | None
    signal: int
    evidence: EvidenceLine

    @property
    def name(self) -> str:
        """SIGKILL and the like."""
        try:
            return signals.Signals(self.signal).name
        except ValueError:
            return f"signal {self.signal}"


def signal_of(exit_code: int | None) -> int | None:
    """The signal behind an exit code: -9 (subprocess) and 137 (shell) are both SIGKILL."""
    if exit_code is None:
        return None
    if exit_code < 0:
        return -exit_code
    number = exit_code - _SHELL_BASE
    return number if number in set(signals.Signals) else None


def first_death(evidence: RunEvidence, lines: Sequence[LogLine]) -> Death | None:
    """The rank that a signal ended first; signals by which a run is stopped do not count."""
    found = _from_log(lines)
    if evidence.ended == "exited":
        # Otherwise the agent ended the group itself, and the codes are its own doing.
        found += [*_from_ranks(evidence), *_from_launcher(evidence)]
    return next((death for death in found if death.signal not in _SENT_BY_US), None)


def _from_log(lines: Sequence[LogLine]) -> list[Death]:
    found = []
    for line in lines:
        worker = _WORKER.search(line.text)
        if worker is not None:
            number = signals.SIGKILL if worker[1] == "Killed" else signals.SIGBUS
            found.append(Death(line.rank, number, line.quote()))
        first = _FIRST_OBSERVED.search(line.text)
        number_of = signal_of(int(first[1])) if first is not None else None
        if first is not None and number_of is not None:
            found.append(Death(int(first[2]), number_of, line.quote()))
    return found


def _from_ranks(evidence: RunEvidence) -> list[Death]:
    found = []
    for rank in evidence.ranks:
        code = rank.agent.exit_code if rank.agent is not None else None
        number = signal_of(code)
        if number is not None:
            text = f"rank {rank.rank} ended with exit code {code}"
            found.append(Death(rank.rank, number, EvidenceLine(line=None, text=text)))
    return found


def _from_launcher(evidence: RunEvidence) -> list[Death]:
    number = evidence.signal if evidence.signal else signal_of(evidence.exit_code)
    if number is None:
        return []
    text = f"the launcher ended with signal {number}"
    return [Death(None, number, EvidenceLine(line=None, text=text))]
