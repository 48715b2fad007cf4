"""Victims and messengers: what another rank's death, a signal or the launcher's summary looks like."""

from __future__ import annotations

import re
from collections.abc import Sequence

from engine.trial.attribution.faults import Fault

_VICTIM_TEXT = re.compile(
    r"Connection closed by (?:remote )?peer|Connection reset by (?:remote )?peer|Socket recv failed"
    r"|Connection closed by localRank|ncclRemoteError|remote process exit|NCCL communicator was aborted"
    r"|Broken pipe|recvValue failed|Process group watchdog thread terminated"
    r"|flight recorder dump signal from another rank|terminated by (?:the )?launcher"
)
_MESSENGERS = frozenset(
    {
        "ChildFailedError",
        "SignalException",
        "CalledProcessError",
        "ProcessExitedException",
        "ProcessRaisedException",
    }
)
_INTERRUPTS = frozenset({"KeyboardInterrupt", "SystemExit"})


def is_victim(fault: Fault) -> bool:
    """Whether the fault only tells that something else went wrong first."""
    return fault.class_name in _MESSENGERS or _VICTIM_TEXT.search(fault.text) is not None


def is_interrupt(fault: Fault) -> bool:
    """Whether the process was told to stop rather than failed."""
    return fault.class_name in _INTERRUPTS


def first_failing(faults: Sequence[Fault]) -> Fault | None:
    """The earliest fault that is neither a victim nor an interrupt.

    Args:
        faults: Sorted by time, as `collect_faults` gives them.
    """
    return next((fault for fault in faults if not is_victim(fault) and not is_interrupt(fault)), None)
