"""What a trial of each candidate would be worth: expected improvement per GPU-hour, weighed by its risks."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from engine.models.acquisition import (
    choose,
    expected_cost,
    log_expected_improvement,
    log_score,
    thompson_draw,
)
from engine.models.arrays import BoolArray, FloatArray
from engine.models.student_t import StudentT
from engine.schema.trial import TrialKind
from engine.search.exclusion import Exclusions, is_conflict
from engine.search.lattice import Rows
from engine.search.memory_fit import usable_memory
from engine.search.models import FittedModels
from engine.search.view import Observation, Prediction, SearchInput

EXPLORING_FLOOR = 0.5
FINISHING_FLOOR = 0.8
LAST_THIRD = 2.0 / 3.0
_LOWER_FLOORS = (EXPLORING_FLOOR, 0.25, 0.1)
_FAILURE_SHARE = 0.3
_LEVEL = 0.9


@dataclass(frozen=True)
class Prices:
    """Expected GPU-hours of a trial by how it ends."""

    success: float
    out_of_memory: float
    conflict: float


@dataclass(frozen=True, eq=False)
class Scored:
    """Candidates with everything a choice needs.

    Attributes:
        rows: Levels, shape (n, A).
        features: Encoded rows, shape (n, d).
        belief: True log speed-up.
        p_fits: Shape (n,).
        p_compatible: Shape (n,).
        cost: Expected GPU-hours, shape (n,).
        potential: Log score if there were no conflict, shape (n,); minus infinity below the floor of P(fits).
        score: Log score, shape (n,).
        floor: Smallest P(fits) that is tried.
    """

    rows: Rows
    features: FloatArray
    belief: StudentT
    p_fits: FloatArray
    p_compatible: FloatArray
    cost: FloatArray
    potential: FloatArray
    score: FloatArray
    floor: float

    @property
    def eligible(self) -> BoolArray:
        """Rows that may be run, shape (n,)."""
        return np.asarray((self.p_fits >= self.floor) & (self.p_compatible > 0.0), dtype=np.bool_)

    def best(self, among: BoolArray | None = None) -> int | None:
        """Row of the highest score, optionally among some; None when none may be run."""
        return choose(self.score if among is None else np.where(among, self.score, -np.inf))


def floor_of(search: SearchInput) -> float:
    """Smallest P(fits) that is tried: failures are cheap early and wasted late."""
    return FINISHING_FLOOR if search.budget.progress >= LAST_THIRD else EXPLORING_FLOOR


def prices(search: SearchInput) -> Prices:
    """Median price of what was seen so far; a failure not seen yet costs a usual share of a success."""
    usable = usable_memory(search)
    trials = search.searched
    success = _median([seen for seen in trials if seen.ran], search.full_trial_gpu_hours)
    return Prices(
        success=success,
        out_of_memory=_median([seen for seen in trials if seen.out_of_memory], _FAILURE_SHARE * success),
        conflict=_median([seen for seen in trials if is_conflict(seen, usable)], _FAILURE_SHARE * success),
    )


def score_rows(
    search: SearchInput, models: FittedModels, exclusions: Exclusions, rows: Rows, best: float
) -> Scored:
    """Score candidates against the incumbent.

    Args:
        search: The decision's input.
        models: Fitted models.
        exclusions: Causes of conflicts.
        rows: Candidates, shape (n, A).
        best: Value of the incumbent, log speed-up.

    Returns:
        The scores.
    """
    features = models.encoder.encode(rows)
    belief = models.belief(features)
    fits = models.p_fits(features)
    compatible = exclusions.p_compatible(rows)
    price = prices(search)
    cost = expected_cost(
        fits, compatible, price.success, price.out_of_memory, price.conflict, search.wait_gpu_hours
    )
    floor = _reachable_floor(floor_of(search), fits[compatible > 0.0])
    potential = log_score(log_expected_improvement(belief, best), 1.0, fits, cost, floor)
    with np.errstate(divide="ignore"):
        score = potential + np.log(compatible)
    return Scored(rows, features, belief, fits, compatible, cost, potential, score, floor)


def thompson_choice(models: FittedModels, scored: Scored, rng: np.random.Generator) -> int | None:
    """Best row under one joint draw of the effects."""
    return thompson_draw(models.speed, scored.features, scored.eligible, rng)


def with_fantasies(search: SearchInput, models: FittedModels) -> FittedModels:
    """The models as if every running trial had measured its prediction, so that parallel trials differ."""
    speed = models.speed
    for features in models.encoder.encode(models.lattice.rows(search.pending)):
        speed = speed.fantasise(features)
    return replace(models, speed=speed)


def prediction(models: FittedModels, scored: Scored, index: int) -> Prediction:
    """What the models expect of one row."""
    low, high = scored.belief.interval(_LEVEL)
    memory = models.memory
    peak = None if memory is None else float(memory.peak_gib(scored.features[index : index + 1])[0])
    return Prediction(
        log_speedup=float(scored.belief.mean[index]),
        low=float(low[index]),
        high=float(high[index]),
        p_fits=float(scored.p_fits[index]),
        memory_gib=peak,
        p_compatible=float(scored.p_compatible[index]),
        cost_gpu_hours=float(scored.cost[index]),
    )


def _reachable_floor(floor: float, fits: FloatArray) -> float:
    """The floor, lowered step by step where no candidate reaches it: a trial teaches, giving up does not."""
    steps = [each for each in (floor, *_LOWER_FLOORS) if each <= floor]
    return next((each for each in steps if np.any(fits >= each)), floor)


def _median(trials: Sequence[Observation], otherwise: float) -> float:
    paid = [seen.gpu_hours for seen in trials if seen.gpu_hours > 0.0 and seen.trial_kind is TrialKind.SEARCH]
    return statistics.median(paid) if paid else otherwise
