"""Slurm's job states and what each means for a trial."""

from __future__ import annotations

import dataclasses
import re
from typing import Literal

from engine.schema.job import Loss

Phase = Literal["waiting", "live", "final"]


@dataclasses.dataclass(frozen=True, slots=True)
class SlurmState:
    """A state word, understood.

    Attributes:
        word: The state in full, upper case.
        phase: waiting (nothing runs yet), live (something runs or is being cleaned up), final.
        suspended: The processes stand still.
        measurement_void: Times measured across this state are worth nothing.
        may_requeue: Final, unless the job was submitted so that Slurm starts it again under the same id.
        held: Waits for a person (`scontrol release`).
        loss: Why a job is lost that ended so without a result; None where the state does not tell.
        by_uid: Who cancelled it, where Slurm says so.
        note: Set for words that this version does not know.
    """

    word: str
    phase: Phase
    suspended: bool = False
    measurement_void: bool = False
    may_requeue: bool = False
    held: bool = False
    loss: Loss | None = None
    by_uid: int | None = None
    note: str | None = None

    @property
    def is_final(self) -> bool:
        """Whether nothing of the job runs any more."""
        return self.phase == "final"


def _waiting(word: str, *, held: bool = False) -> SlurmState:
    return SlurmState(word, "waiting", held=held)


def _live(word: str, *, suspended: bool = False) -> SlurmState:
    return SlurmState(word, "live", suspended=suspended, measurement_void=suspended)


def _final(word: str, loss: Loss | None, *, may_requeue: bool = False) -> SlurmState:
    return SlurmState(word, "final", loss=loss, may_requeue=may_requeue, measurement_void=may_requeue)


SLURM_STATES: dict[str, SlurmState] = {
    state.word: state
    for state in (
        _waiting("PENDING"),
        _waiting("REQUEUED"),
        _waiting("REQUEUE_FED"),
        _waiting("REQUEUE_HOLD", held=True),
        _waiting("SPECIAL_EXIT", held=True),
        _waiting("RESV_DEL_HOLD", held=True),
        _waiting("CONFIGURING"),
        _waiting("POWER_UP_NODE"),
        _live("RUNNING"),
        _live("COMPLETING"),
        _live("STAGE_OUT"),
        _live("SIGNALING"),
        _live("RESIZING"),
        _live("EXPEDITING"),
        _live("UPDATE_DB"),
        _live("SUSPENDED", suspended=True),
        _live("STOPPED", suspended=True),
        _final("COMPLETED", None),
        _final("FAILED", None),
        _final("TIMEOUT", Loss.TIME_LIMIT),
        _final("DEADLINE", Loss.TIME_LIMIT),
        _final("OUT_OF_MEMORY", Loss.HOST_OOM),
        _final("CANCELLED", Loss.CANCELLED_OUTSIDE),
        _final("REVOKED", Loss.CANCELLED_OUTSIDE),
        _final("NODE_FAIL", Loss.NODE_FAILED, may_requeue=True),
        _final("BOOT_FAIL", Loss.NODE_FAILED, may_requeue=True),
        _final("RECONFIG_FAIL", Loss.NODE_FAILED, may_requeue=True),
        _final("LAUNCH_FAILED", Loss.NEVER_STARTED, may_requeue=True),
        _final("PREEMPTED", Loss.PREEMPTED, may_requeue=True),
    )
}
"""Every state of Slurm 17.11 to 26.11, by its full word."""

_SHORT = {
    "PD": "PENDING",
    "RQ": "REQUEUED",
    "RF": "REQUEUE_FED",
    "RH": "REQUEUE_HOLD",
    "SE": "SPECIAL_EXIT",
    "RD": "RESV_DEL_HOLD",
    "CF": "CONFIGURING",
    "R": "RUNNING",
    "CG": "COMPLETING",
    "SO": "STAGE_OUT",
    "SI": "SIGNALING",
    "RS": "RESIZING",
    "S": "SUSPENDED",
    "ST": "STOPPED",
    "CD": "COMPLETED",
    "F": "FAILED",
    "TO": "TIMEOUT",
    "DL": "DEADLINE",
    "OOM": "OUT_OF_MEMORY",
    "CA": "CANCELLED",
    "RV": "REVOKED",
    "NF": "NODE_FAIL",
    "BF": "BOOT_FAIL",
    "PR": "PREEMPTED",
}
_SPELLINGS = {"CANCELED": "CANCELLED", "SUSPEND": "SUSPENDED", "REQUEUE": "REQUEUED"}
_BY_UID = re.compile(r"\bby (\d+)")


def parse_state(text: str) -> SlurmState:
    """Understand a state as any program of Slurm prints it: "CANCELLED by 1000", "CANCELLED+", "PD".

    A word that is not known counts as live, with a note: the files of the job decide, nothing is
    declared dead because Slurm learned a new word.
    """
    words = text.strip().split(maxsplit=1)
    word = words[0].upper() if words else ""
    state = _state_of(word)
    if state is None:
        note = f"Slurm says {text.strip()!r}, which is not a state known here"
        return SlurmState(word or "UNKNOWN", "live", note=note)
    by = _BY_UID.search(text)
    return dataclasses.replace(state, by_uid=int(by.group(1))) if by else state


def _state_of(word: str) -> SlurmState | None:
    if word.endswith("+"):
        # sacct cuts words to its column: the beginning must fit exactly one state.
        fitting = [name for name in SLURM_STATES if name.startswith(word[:-1])]
        return SLURM_STATES[fitting[0]] if len(fitting) == 1 and word != "+" else None
    name = _SHORT.get(word, _SPELLINGS.get(word, word))
    return SLURM_STATES.get(name)
