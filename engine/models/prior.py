"""The prior that the speed and the memory model share: normal coefficients, gamma noise precision.

w | sigma^2 ~ N(m0, sigma^2 diag(p)^-1) and 1 / sigma^2 ~ Gamma(a0, rate b0).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from engine.models.arrays import FloatArray, finite_vector, positive_vector


@dataclass(frozen=True, eq=False)
class RegressionPrior:
    """Conjugate prior of a linear model with unknown noise.

    Attributes:
        mean: m0, shape (d,), in units of the response.
        precision: p, shape (d,), > 0, in units of 1 / sigma^2: noise variance over coefficient variance.
        a0: Shape of the noise precision, > 1/2 (the predictive needs a mean); 2 a0 counts like observations.
        b0: Rate of the noise precision, > 0; b0 / a0 is the noise variance expected beforehand.
    """

    mean: FloatArray
    precision: FloatArray
    a0: float
    b0: float

    def __post_init__(self) -> None:
        """Copy, check and seal the arrays.

        Raises:
            ValueError: Shapes differ, a number is not finite, or precision, a0 or b0 is too small.
        """
        mean = finite_vector("prior mean", self.mean)
        object.__setattr__(self, "mean", mean)
        object.__setattr__(
            self, "precision", positive_vector("prior precision", self.precision, mean.shape[0])
        )
        if not (0.5 < self.a0 < np.inf):
            raise ValueError(f"prior a0 = {self.a0}: must be greater than 1/2")
        if not (0.0 < self.b0 < np.inf):
            raise ValueError(f"prior b0 = {self.b0}: must be greater than 0")

    @classmethod
    def from_scales(cls, mean: ArrayLike, effect_sd: ArrayLike, noise_sd: float, noise_dof: float) -> Self:
        """Build the prior from standard deviations in units of the response.

        Args:
            mean: Shape (d,).
            effect_sd: Shape (d,), > 0; how far a coefficient may lie from its mean.
            noise_sd: Noise expected beforehand, > 0.
            noise_dof: Degrees of freedom behind `noise_sd`, > 1.

        Returns:
            The prior with p = (noise_sd / effect_sd)^2, a0 = dof / 2, b0 = a0 noise_sd^2.
        """
        spread = positive_vector("effect sd", effect_sd)
        a0 = 0.5 * noise_dof
        return cls(finite_vector("prior mean", mean), (noise_sd / spread) ** 2, a0, a0 * noise_sd**2)

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return int(self.mean.shape[0])

    @property
    def noise_variance(self) -> float:
        """Noise variance expected beforehand, b0 / a0."""
        return self.b0 / self.a0

    def informed_by(self, mean: ArrayLike, precision: ArrayLike) -> Self:
        """Multiply in a second normal belief about the coefficients (history, weighted by similarity).

        A power prior (Ibrahim & Chen 2000) scales `precision` with the weight of its source.

        Args:
            mean: Shape (d,).
            precision: Shape (d,), >= 0, in units of 1 / sigma^2; 0 says nothing about that coefficient.

        Returns:
            The product of the two normals; the noise part is unchanged.

        Raises:
            ValueError: Wrong shape or a negative precision.
        """
        other = finite_vector("history mean", mean, self.dimension)
        weight = finite_vector("history precision", precision, self.dimension)
        if np.any(weight < 0.0):
            raise ValueError("history precision: every element must be at least 0")
        total = self.precision + weight
        return type(self)((self.precision * self.mean + weight * other) / total, total, self.a0, self.b0)

    def extended(self, precision: float, mean: float) -> Self:
        """The prior with one more feature at the end."""
        return type(self)(np.append(self.mean, mean), np.append(self.precision, precision), self.a0, self.b0)
