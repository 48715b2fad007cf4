"""An advisor's ideas as beliefs about single changes and whole candidates to start from."""

from __future__ import annotations

from collections.abc import Sequence

from engine.schema.advice import Idea
from engine.schema.trial import Candidate
from engine.search.view import Effect, Suggestion
from engine.task.space import ParameterSpace

_SMALLEST_SD = 0.01


def effects_of(ideas: Sequence[Idea]) -> tuple[Effect, ...]:
    """Beliefs of the ideas that change one parameter; the first idea about a change counts."""
    found: dict[str, Effect] = {}
    for idea in ideas:
        if len(idea.changes) != 1:
            continue
        (mechanism, value), *_ = idea.changes.items()
        effect = Effect(
            mechanism=mechanism,
            value=value,
            log_speedup=idea.log_speedup_mean,
            sd=max(idea.log_speedup_sd, _SMALLEST_SD),
            log_memory=idea.log_memory_mean,
            memory_sd=max(idea.log_memory_sd, _SMALLEST_SD),
            source="advisor",
        )
        found.setdefault(f"{mechanism}={value!r}", effect)
    return tuple(found.values())


def suggestions_of(ideas: Sequence[Idea], space: ParameterSpace) -> tuple[Suggestion, ...]:
    """Whole candidates of the ideas that change several parameters at once, the most promising first."""
    joint = [idea for idea in ideas if len(idea.changes) > 1]
    joint.sort(key=lambda idea: -idea.log_speedup_mean)
    return tuple(
        Suggestion(
            candidate=Candidate(configuration={**space.baseline(), **idea.changes}),
            source="advisor",
            reason=idea.reason,
        )
        for idea in joint
    )
