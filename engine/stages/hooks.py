"""What a stage tells those around the engine: notes for a person, and events that a command may wait for."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass


class StudyEvent(enum.StrEnum):
    """What may be worth waking somebody for."""

    FINISHED = "finished"
    PAUSED = "paused"
    STALLED = "stalled"
    FAILED = "failed"


def _nothing(_: str) -> None:
    """Nobody listens."""


@dataclass(frozen=True)
class Hooks:
    """Listeners; they must return at once and never raise.

    Attributes:
        say: Takes one sentence for a person.
        happened: Takes an event of the study.
    """

    say: Callable[[str], None] = _nothing
    happened: Callable[[StudyEvent], None] = _nothing


SILENT = Hooks()
"""Nobody listens."""
