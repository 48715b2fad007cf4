"""Speed model: conjugate Bayesian linear regression of the log speed-up.

y_i | w, sigma^2 ~ N(x_i^T w, v_i sigma^2) with the normal-inverse-gamma prior of `engine.models.prior`.

Source: Bishop (2006), "Pattern Recognition and Machine Learning", section 3.3; O'Hagan & Forster (2004),
"Bayesian Inference", chapter 11.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import gammaln

from engine.models import cholesky
from engine.models.arrays import FloatArray, finite_matrix, finite_vector, positive_vector
from engine.models.prior import RegressionPrior
from engine.models.student_t import StudentT

_LOG_2PI = math.log(2.0 * math.pi)


class SpeedPrior(RegressionPrior):
    """Prior over effects on the log speed-up; see `RegressionPrior`."""


@dataclass(frozen=True, eq=False)
class SpeedPosterior:
    """Posterior after n observations; every method returns a new object.

    Sums drift by rounding when they are updated for long: refit from the observations now and then.

    Attributes:
        prior: The prior it started from.
        factor: L, shape (d, d), with L L^T = A = A0 + sum x x^T / v.
        eta: A0 m0 + sum x y / v, shape (d,).
        q: m0^T A0 m0 + sum y^2 / v.
        n: Number of observations.
        log_variances: Sum of log v.
    """

    prior: SpeedPrior
    factor: FloatArray
    eta: FloatArray
    q: float
    n: int
    log_variances: float

    @classmethod
    def fit(
        cls, prior: SpeedPrior, x: ArrayLike, y: ArrayLike, relative_variance: ArrayLike | None = None
    ) -> Self:
        """Condition the prior on n observations at once.

        Args:
            prior: Over d coefficients.
            x: Features, shape (n, d); n may be 0.
            y: Log speed-ups, shape (n,).
            relative_variance: v, shape (n,), > 0: noise variance over sigma^2 (a run timed over half of the
                reference number of steps has 2); None means 1 everywhere.

        Returns:
            The posterior.

        Raises:
            ValueError: Shapes differ or a number is not finite.
        """
        rows = finite_matrix("features", x, prior.dimension)
        size = rows.shape[0]
        response = finite_vector("log speed-ups", y, size)
        given = np.ones(size) if relative_variance is None else relative_variance
        variance = positive_vector("relative variance", given, size)
        weighted = rows / variance[:, None]
        return cls(
            prior=prior,
            factor=cholesky.factorise(np.diag(prior.precision) + weighted.T @ rows),
            eta=prior.precision * prior.mean + weighted.T @ response,
            q=float(prior.precision @ prior.mean**2 + (response / variance) @ response),
            n=size,
            log_variances=float(np.log(variance).sum()),
        )

    def add(self, x: ArrayLike, y: float, relative_variance: float = 1.0) -> Self:
        """Add one observation in O(d^2); x has shape (d,)."""
        row, response, log_variance = self._scaled(x, y, relative_variance)
        return replace(
            self,
            factor=cholesky.update(self.factor, row),
            eta=self.eta + row * response,
            q=self.q + response**2,
            n=self.n + 1,
            log_variances=self.log_variances + log_variance,
        )

    def remove(self, x: ArrayLike, y: float, relative_variance: float = 1.0) -> Self:
        """Take one observation out again in O(d^2); x has shape (d,).

        Raises:
            LostDefiniteness: Refit from the remaining observations instead.
            ValueError: There is no observation to remove.
        """
        if self.n == 0:
            raise ValueError("no observation to remove")
        row, response, log_variance = self._scaled(x, y, relative_variance)
        return replace(
            self,
            factor=cholesky.downdate(self.factor, row),
            eta=self.eta - row * response,
            q=self.q - response**2,
            n=self.n - 1,
            log_variances=self.log_variances - log_variance,
        )

    def extend(self, precision: float, mean: float = 0.0) -> Self:
        """Append a feature that was 0 in every observation so far; O(d), no refit.

        Args:
            precision: Prior precision of its coefficient in units of 1 / sigma^2, > 0.
            mean: Prior mean of its coefficient.

        Returns:
            The posterior over d + 1 coefficients.
        """
        return replace(
            self,
            prior=self.prior.extended(precision, mean),
            factor=cholesky.border(self.factor, np.zeros(self.prior.dimension), precision),
            eta=np.append(self.eta, precision * mean),
            q=self.q + precision * mean**2,
        )

    def fantasise(self, x: ArrayLike, relative_variance: float = 1.0) -> Self:
        """Pretend that a pending trial measured what is predicted for it ("kriging believer").

        Mean and noise estimate stay, the uncertainty around x falls, so that the next parallel slot looks
        elsewhere. No observation is counted: evidence and `remove` are for real observations only.

        Source: Ginsbourger, Le Riche & Carraro (2010), "Kriging is well-suited to parallelize optimization".

        Args:
            x: Features of the pending trial, shape (d,).
            relative_variance: Of the measurement it will give.

        Returns:
            The posterior with the fantasy; drop it for the real posterior when the trial ends.
        """
        row, _, _ = self._scaled(x, 0.0, relative_variance)
        believed = float(row @ self.mean)
        return replace(
            self,
            factor=cholesky.update(self.factor, row),
            eta=self.eta + row * believed,
            q=self.q + believed**2,
        )

    @property
    def a(self) -> float:
        """Shape of the noise precision; the predictive has 2 a degrees of freedom."""
        return self.prior.a0 + 0.5 * self.n

    @cached_property
    def b(self) -> float:
        """Rate of the noise precision; b / a estimates sigma^2."""
        # The sum of squares is never negative in exact arithmetic, so b0 is a bound and not a repair.
        return self.prior.b0 + 0.5 * max(0.0, self.q - float(self.mean @ self.eta))

    @cached_property
    def mean(self) -> FloatArray:
        """Posterior mean of the coefficients, shape (d,)."""
        return cholesky.solve(self.factor, self.eta)

    def leverage(self, x: ArrayLike) -> FloatArray:
        """x^T A^-1 x for each row of x, shape (m, d) to (m,); it never grows when data are added."""
        half = cholesky.half_solve(self.factor, finite_matrix("features", x, self.prior.dimension).T)
        return np.asarray((half * half).sum(axis=0), dtype=np.float64)

    def predict(self, x: ArrayLike) -> StudentT:
        """Belief about the true log speed-up x^T w, without measurement noise; x has shape (m, d)."""
        return self._predict(x, 0.0)

    def predict_noisy(self, x: ArrayLike, relative_variance: float = 1.0) -> StudentT:
        """Belief about what one more run would measure; x has shape (m, d)."""
        return self._predict(x, relative_variance)

    def effects(self) -> StudentT:
        """Marginals of the d coefficients; `.interval(level)` gives credible intervals."""
        return self.predict(np.eye(self.prior.dimension))

    def sample(self, rng: np.random.Generator) -> FloatArray:
        """One joint draw of the coefficients, shape (d,): sigma^2 first, then w given sigma^2."""
        sigma = math.sqrt(self.b / rng.gamma(self.a))
        noise = rng.standard_normal(self.prior.dimension)
        return self.mean + sigma * cholesky.half_solve_transposed(self.factor, noise)

    def log_evidence(self) -> float:
        """Log p(y | X) under the prior, all constants included."""
        prior = self.prior
        determinants = float(np.log(prior.precision).sum()) - cholesky.log_determinant(self.factor)
        rates = prior.a0 * math.log(prior.b0) - self.a * math.log(self.b)
        shapes = float(gammaln(self.a) - gammaln(prior.a0))
        return 0.5 * (determinants - self.n * _LOG_2PI - self.log_variances) + rates + shapes

    def _predict(self, x: ArrayLike, relative_variance: float) -> StudentT:
        rows = finite_matrix("features", x, self.prior.dimension)
        scale = np.sqrt(self.b / self.a * (relative_variance + self.leverage(rows)))
        return StudentT(mean=rows @ self.mean, scale=scale, dof=2.0 * self.a)

    def _scaled(self, x: ArrayLike, y: float, relative_variance: float) -> tuple[FloatArray, float, float]:
        row = finite_vector("features", x, self.prior.dimension)
        response, variance = finite_vector("log speed-up and relative variance", (y, relative_variance))
        if variance <= 0.0:
            raise ValueError(f"relative variance = {variance}: must be greater than 0")
        root = math.sqrt(variance)
        return row / root, float(response) / root, math.log(variance)
