"""The decision: everything observed so far → one proposal, or the statement that nothing is left to try.

A pure function. Its random numbers are seeded by the study's seed and the number of observations, so that a
replay after a crash proposes the same.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.schema.trial import TrialKind
from engine.search.acquisition import (
    LAST_THIRD,
    Scored,
    prediction,
    score_rows,
    thompson_choice,
    with_fantasies,
)
from engine.search.candidates import candidate_rows, changes
from engine.search.escalation import all_levels, axis_impact, escalation, joint_changes, search_levels
from engine.search.exclusion import Exclusions, find_exclusions
from engine.search.incumbents import Standing, standings
from engine.search.lattice import Rows
from engine.search.models import FittedModels, fit_models
from engine.search.retest import Retest, next_retest
from engine.search.starts import next_start, start_plan
from engine.search.view import Exhausted, Proposal, SearchInput

CENTRES = 5
THOMPSON_EVERY = 8


@dataclass(frozen=True, eq=False)
class _Decision:
    """What a decision is made from."""

    search: SearchInput
    models: FittedModels
    exclusions: Exclusions
    ranked: list[Standing]
    scored: Scored
    rng: np.random.Generator

    @property
    def incumbent(self) -> Rows:
        return self.ranked[0].row


@dataclass(frozen=True)
class _Choice:
    index: int
    origin: str
    reason: str


def propose(search: SearchInput) -> Proposal | Exhausted:
    """What to run next.

    Args:
        search: Everything that is known.

    Returns:
        A candidate that was never tried, keeps every requirement, holds no confirmed conflict and is
        predicted to fit; or why there is none.
    """
    decision = _prepare(search)
    scored = decision.scored
    if scored.rows.shape[0] == 0:
        return Exhausted(reason="Every valid candidate was tried.")
    starting = len(search.searched) + len(search.pending) < len(start_plan(search))
    if not starting:
        retest = next_retest(search, decision.models, decision.exclusions, scored)
        if retest is not None:
            return _retest_proposal(decision, retest)
    choice = _choose(decision)
    if choice is None:
        return Exhausted(
            reason=f"None of the {scored.rows.shape[0]} untried candidates is free of conflicts and may fit."
        )
    return Proposal(
        candidate=decision.models.lattice.candidate(scored.rows[choice.index]),
        kind=TrialKind.SEARCH,
        origin=choice.origin,
        reason=choice.reason,
        predicted=prediction(decision.models, scored, choice.index),
    )


def _prepare(search: SearchInput) -> _Decision:
    rng = np.random.default_rng([search.seed, len(search.observations), len(search.pending)])
    models = fit_models(search)
    exclusions = find_exclusions(search, models.lattice)
    ranked = standings(search, models)
    centres = np.stack([standing.row for standing in ranked[:CENTRES]])
    steps = escalation(search, len(start_plan(search))).steps
    levels = search_levels(models.lattice, axis_impact(models), steps)
    believed = with_fantasies(search, models)
    for allowed in dict.fromkeys((levels, all_levels(models.lattice))):
        rows = candidate_rows(search, models.lattice, allowed, centres, rng)
        scored = score_rows(search, believed, exclusions, rows, ranked[0].value)
        if np.any(scored.eligible):
            break
    return _Decision(search, believed, exclusions, ranked, scored, rng)


def _choose(decision: _Decision) -> _Choice | None:
    search, scored = decision.search, decision.scored
    start = next_start(search, decision.models.lattice, scored, decision.rng)
    if start is not None:
        return _Choice(start.index, start.origin, start.reason)
    for way in (_escalated, _refined, _drawn):
        choice = way(decision)
        if choice is not None:
            return choice
    index = scored.best()
    if index is None:
        return None
    return _Choice(index, "acquisition", "Largest expected improvement per GPU-hour, weighed by its risks.")


def _escalated(decision: _Decision) -> _Choice | None:
    state = escalation(decision.search, len(start_plan(decision.search)))
    if not state.due:
        return None
    impact = axis_impact(decision.models)
    index = decision.scored.best(joint_changes(decision.scored.rows, decision.incumbent, impact))
    if index is None:
        return None
    reason = "Two full trials in a row brought no improvement: several high-impact parameters change at once."
    return _Choice(index, "escalation", reason)


def _refined(decision: _Decision) -> _Choice | None:
    """In the last third, every other trial changes one parameter of the incumbent."""
    search = decision.search
    if search.budget.progress < LAST_THIRD or (len(search.searched) + len(search.pending)) % 2:
        return None
    single = changes(decision.scored.rows, decision.incumbent).sum(axis=1) == 1
    index = decision.scored.best(np.asarray(single, dtype=np.bool_))
    if index is None:
        return None
    return _Choice(index, "refine", "The budget nears its end: one parameter of the best candidate changes.")


def _drawn(decision: _Decision) -> _Choice | None:
    """A share of the trials, and every second parallel slot, follows one draw of the effects."""
    search = decision.search
    if search.budget.progress >= LAST_THIRD:
        return None
    if len(search.searched) % THOMPSON_EVERY != THOMPSON_EVERY - 1 and len(search.pending) % 2 == 0:
        return None
    index = thompson_choice(decision.models, decision.scored, decision.rng)
    if index is None:
        return None
    return _Choice(index, "thompson", "The best candidate under one plausible draw of the effects.")


def _retest_proposal(decision: _Decision, retest: Retest) -> Proposal:
    scored = score_rows(
        decision.search, decision.models, decision.exclusions, retest.row[None, :], decision.ranked[0].value
    )
    return Proposal(
        candidate=decision.models.lattice.candidate(retest.row),
        kind=TrialKind.RETEST,
        origin="retest",
        reason=retest.reason,
        predicted=prediction(decision.models, scored, 0),
    )
