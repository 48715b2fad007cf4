"""Memory model: will a configuration fit?

Response z = log(peak memory) - offset, the offset being the log of an analytical estimate where there is
one. A run that the allocator stopped tells only that z exceeds its own censoring point; it is used as exactly
that.

Source: Tobin (1958) and Olsen (1978), see `engine.models.tobit`; Laplace covariance, Bishop (2006), 4.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr

from engine.models.arrays import FloatArray, finite_matrix, finite_vector
from engine.models.prior import RegressionPrior
from engine.models.tobit import TobitMode, TobitObjective, maximise


class MemoryPrior(RegressionPrior):
    """Prior over effects on the log peak memory; see `RegressionPrior`."""


@dataclass(frozen=True, eq=False)
class MemoryPosterior:
    """Normal approximation at the posterior mode.

    Attributes:
        coefficients: beta, shape (d,), log units.
        covariance: Of beta, shape (d, d).
        sigma: Residual standard deviation of log peak memory.
        measured: Number of observations with a measured peak.
        censored: Number of observations with a lower bound only.
        iterations: Newton steps taken.
    """

    coefficients: FloatArray
    covariance: FloatArray
    sigma: float
    measured: int
    censored: int
    iterations: int

    @classmethod
    def fit(cls, prior: MemoryPrior, x: ArrayLike, z: ArrayLike, censored: ArrayLike) -> Self:
        """Condition the prior on n observations; n may be 0, below d, and every one of them censored.

        Args:
            prior: Over d coefficients.
            x: Features, shape (n, d).
            z: Log peak memory minus offset; where censored, log lower bound minus offset; shape (n,).
            censored: Boolean, shape (n,).

        Returns:
            The posterior.

        Raises:
            ValueError: Shapes differ or a number is not finite.
            NotConverged: The inputs span too many orders of magnitude.
        """
        rows = finite_matrix("features", x, prior.dimension)
        response = finite_vector("log peak memory", z, rows.shape[0])
        flags = np.asarray(censored, dtype=np.bool_)
        if flags.shape != response.shape:
            raise ValueError(f"censored: shape {flags.shape}, expected {response.shape}")
        mode = maximise(TobitObjective(prior, rows, response, flags))
        gamma = float(mode.theta[-1])
        return cls(
            coefficients=mode.theta[:-1] / gamma,
            covariance=_coefficient_covariance(mode),
            sigma=1.0 / gamma,
            measured=int(np.count_nonzero(~flags)),
            censored=int(np.count_nonzero(flags)),
            iterations=mode.iterations,
        )

    def predict(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """What a run would measure.

        Args:
            x: Features, shape (m, d).

        Returns:
            Mean and standard deviation of z, each shape (m,); the latter from residual and coefficients.
        """
        rows = finite_matrix("features", x, self.coefficients.shape[0])
        variance = np.einsum("ij,jk,ik->i", rows, self.covariance, rows, optimize=True)
        return rows @ self.coefficients, np.sqrt(self.sigma**2 + np.maximum(variance, 0.0))

    def probability_fits(self, x: ArrayLike, log_limit: ArrayLike, offset: ArrayLike = 0.0) -> FloatArray:
        """P(peak memory <= limit).

        Args:
            x: Features, shape (m, d).
            log_limit: Log of the usable memory, headroom already taken off; scalar or (m,).
            offset: Log of the analytical estimate that was subtracted in `fit`; scalar or (m,).

        Returns:
            Shape (m,).
        """
        mean, deviation = self.predict(x)
        slack = np.asarray(log_limit, dtype=np.float64) - np.asarray(offset, dtype=np.float64) - mean
        return np.asarray(ndtr(slack / deviation), dtype=np.float64)


def _coefficient_covariance(mode: TobitMode) -> FloatArray:
    """Covariance of beta = delta / gamma from that of (delta, gamma) by the delta method."""
    delta, gamma = mode.theta[:-1], float(mode.theta[-1])
    jacobian = np.hstack([np.eye(delta.shape[0]) / gamma, -delta[:, None] / gamma**2])
    half = np.linalg.solve(np.linalg.cholesky(mode.curvature), jacobian.T)
    return half.T @ half
