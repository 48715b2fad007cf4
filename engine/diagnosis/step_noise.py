"""Noise of the step time within and between runs of the unchanged job, and what it lets us tell."""

from __future__ import annotations

import math
from collections.abc import Sequence

from engine.models import noise
from engine.models.paired import VERIFICATION_LEVEL
from engine.schema.diagnosis import NoiseEstimate
from engine.schema.trial import Measurement


def estimate_noise(measurements: Sequence[Measurement], pairs: int) -> NoiseEstimate:
    """Noise over the runs, log step time.

    The spread between a few runs may be small by luck, so it is never taken to be less than the standard
    error of one run's mean. The verification pools its own pairs with this estimate, which is counted in
    the degrees of freedom.

    Args:
        measurements: At least two runs of one configuration.
        pairs: Pairs that the verification plans.

    Returns:
        Standard deviations, and the smallest relative speed-up that the verification finds with power 0.8.

    Raises:
        ValueError: fewer than two runs.
    """
    runs = [measurement.step_times_s for measurement in measurements]
    between = noise.between_runs(runs)
    if between is None:
        raise ValueError(f"{len(runs)} runs: noise between runs needs at least two")
    within = noise.pool([each for each in map(noise.within_run, runs) if each is not None])
    within_sd = within.sd if within is not None else 0.0
    shortest = min(len(run) for run in runs)
    sd = max(between.sd, within_sd / math.sqrt(shortest))
    planned = noise.NoiseEstimate(sd, between.dof + pairs - 1)
    return NoiseEstimate(
        within=within_sd,
        between=sd,
        dof=round(between.dof),
        runs=len(runs),
        smallest_effect=math.expm1(noise.smallest_tellable(planned, pairs, VERIFICATION_LEVEL)),
    )
