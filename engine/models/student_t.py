"""Student-t predictive distributions, one per candidate."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import betaln, stdtr, stdtrit

from engine.models.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class StudentT:
    """m independent marginals mean + scale * t_dof.

    Attributes:
        mean: Shape (m,).
        scale: Shape (m,), >= 0; not the standard deviation, which is scale * sqrt(dof / (dof - 2)).
        dof: Degrees of freedom, > 0.
    """

    mean: FloatArray
    scale: FloatArray
    dof: float

    def interval(self, level: float) -> tuple[FloatArray, FloatArray]:
        """Central interval that holds `level` (between 0 and 1) of the mass; lower and upper, each (m,)."""
        half = student_quantile(self.dof, 0.5 + 0.5 * level) * self.scale
        return self.mean - half, self.mean + half

    def probability_above(self, threshold: float) -> FloatArray:
        """P(value > threshold), shape (m,); a marginal of zero scale is a point mass."""
        with np.errstate(divide="ignore", invalid="ignore"):
            z = (self.mean - threshold) / self.scale
        point_mass = (self.mean > threshold).astype(np.float64)
        return np.where(self.scale > 0.0, student_cdf(self.dof, z), point_mass)


def student_cdf(dof: float, z: FloatArray) -> FloatArray:
    """Distribution function of the standard Student-t at z, any shape."""
    return np.asarray(stdtr(dof, z), dtype=np.float64)


def student_log_density(dof: float, z: FloatArray) -> FloatArray:
    """Log density of the standard Student-t at z, any shape."""
    constant = -0.5 * math.log(dof) - float(betaln(0.5, 0.5 * dof))
    return constant - 0.5 * (dof + 1.0) * np.log1p(z * z / dof)


def student_quantile(dof: float, probability: float) -> float:
    """Quantile of the standard Student-t."""
    return float(stdtrit(dof, probability))
