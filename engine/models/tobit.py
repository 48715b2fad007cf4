"""Right-censored (type-I Tobit) regression with one censoring point per observation: MAP by damped Newton.

In Olsen's coordinates delta = beta / sigma, gamma = 1 / sigma every residual r_i = gamma z_i - x_i^T delta is
linear, and the log posterior is concave: one optimum, whatever the start.

Source: Tobin (1958), Econometrica 26; Olsen (1978), Econometrica 46; Amemiya (1973), Econometrica 41.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import erfcx, log_ndtr

from engine.models.arrays import BoolArray, FloatArray
from engine.models.prior import RegressionPrior

_MILLS_CONSTANT = math.sqrt(2.0 / math.pi)
_DECREMENT = 1e-12
_ARMIJO = 1e-4
_MAX_ITERATIONS = 200
_MAX_HALVINGS = 60


class NotConverged(ArithmeticError):
    """Newton's method did not reach the optimum: the inputs span too many orders of magnitude."""


@dataclass(frozen=True, eq=False)
class TobitObjective:
    """Log posterior as a function of theta = (delta, gamma), shape (d + 1,).

    The density is taken in these coordinates, so the mode of gamma is not biased by the number of
    coefficients: without censored rows it is the marginal mode of the conjugate posterior. The mode over
    (beta, gamma) would have d more factors of gamma: a noise estimate that shrinks with each useless feature.

    Attributes:
        prior: Over (beta, sigma).
        x: Features, shape (n, d).
        z: Measured value, or the censoring point where censored, shape (n,).
        censored: True where the value is only known to be greater than z, shape (n,).
    """

    prior: RegressionPrior
    x: FloatArray
    z: FloatArray
    censored: BoolArray

    @cached_property
    def rows(self) -> FloatArray:
        """Derivative of the residuals, shape (n, d + 1): r = rows @ theta."""
        return np.hstack([-self.x, self.z[:, None]])

    @cached_property
    def power(self) -> float:
        """Exponent of gamma in the posterior density."""
        return float(np.count_nonzero(~self.censored)) + 2.0 * self.prior.a0 - 1.0

    def start(self) -> FloatArray:
        """The prior's centre as theta."""
        gamma = 1.0 / math.sqrt(self.prior.noise_variance)
        return np.append(gamma * self.prior.mean, gamma)

    def value(self, theta: FloatArray) -> float:
        """Log posterior up to a constant; minus infinity where gamma <= 0, which has no density."""
        gamma = float(theta[-1])
        if gamma <= 0.0:
            return -math.inf
        residual = self.rows @ theta
        exact = residual[~self.censored]
        offset = theta[:-1] - gamma * self.prior.mean
        return (
            self.power * math.log(gamma)
            - 0.5 * float(exact @ exact)
            + float(log_ndtr(-residual[self.censored]).sum())
            - 0.5 * float(self.prior.precision @ offset**2)
            - self.prior.b0 * gamma**2
        )

    def derivatives(self, theta: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Gradient, shape (d + 1,), and negative Hessian, shape (d + 1, d + 1), positive definite."""
        prior, gamma = self.prior, float(theta[-1])
        residual = self.rows @ theta
        ratio = inverse_mills(residual)
        slope = np.where(self.censored, -ratio, -residual)
        weight = np.where(self.censored, np.clip(ratio * (ratio - residual), 0.0, 1.0), 1.0)
        pull = prior.precision * (theta[:-1] - gamma * prior.mean)
        gradient = self.rows.T @ slope
        gradient[:-1] -= pull
        gradient[-1] += float(prior.mean @ pull) + self.power / gamma - 2.0 * prior.b0 * gamma
        curvature = (self.rows * weight[:, None]).T @ self.rows
        cross = prior.precision * prior.mean
        curvature[:-1, :-1] += np.diag(prior.precision)
        curvature[:-1, -1] -= cross
        curvature[-1, :-1] -= cross
        curvature[-1, -1] += float(prior.mean @ cross) + self.power / gamma**2 + 2.0 * prior.b0
        return gradient, curvature


@dataclass(frozen=True, eq=False)
class TobitMode:
    """The optimum.

    Attributes:
        theta: (delta, gamma), shape (d + 1,).
        curvature: Negative Hessian there, shape (d + 1, d + 1).
        iterations: Newton steps taken.
    """

    theta: FloatArray
    curvature: FloatArray
    iterations: int


def maximise(objective: TobitObjective) -> TobitMode:
    """Damped Newton with Armijo halving from the prior's centre.

    Args:
        objective: The concave log posterior.

    Returns:
        The mode and the curvature there.

    Raises:
        NotConverged: No optimum within the iteration limit.
    """
    theta = objective.start()
    for iteration in range(_MAX_ITERATIONS):
        gradient, curvature = objective.derivatives(theta)
        try:
            step = np.asarray(np.linalg.solve(curvature, gradient), dtype=np.float64)
        except np.linalg.LinAlgError:
            break
        decrement = float(gradient @ step)
        if not math.isfinite(decrement):
            break
        current = objective.value(theta)
        if decrement < _DECREMENT * max(1.0, abs(current)):
            return TobitMode(theta, curvature, iteration)
        theta = _line_search(objective, theta, step, current, decrement)
    raise NotConverged(f"no optimum within {_MAX_ITERATIONS} Newton steps on {objective.x.shape[0]} rows")


def inverse_mills(r: FloatArray) -> FloatArray:
    """phi(r) / (1 - Phi(r)), any shape; erfcx keeps it accurate over the whole real line."""
    return np.asarray(_MILLS_CONSTANT / erfcx(r / math.sqrt(2.0)), dtype=np.float64)


def _line_search(
    objective: TobitObjective, theta: FloatArray, step: FloatArray, current: float, decrement: float
) -> FloatArray:
    length = 1.0
    for _ in range(_MAX_HALVINGS):
        candidate = theta + length * step
        if objective.value(candidate) >= current + _ARMIJO * length * decrement:
            return candidate
        length *= 0.5
    raise NotConverged(f"no ascent along a Newton direction with decrement {decrement:g}")
