"""The fast Student-t functions equal scipy's distribution object."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from engine.models.student_t import StudentT, student_cdf, student_log_density, student_quantile


@pytest.mark.parametrize("dof", [1.5, 6.0, 60.0])
def test_functions_match_scipy(dof: float) -> None:
    """Distribution function, log density and quantile agree with scipy.stats.t in centre and tails."""
    z = np.array([-30.0, -3.0, -0.1, 0.0, 2.0, 30.0])
    np.testing.assert_allclose(student_cdf(dof, z), stats.t.cdf(z, dof), rtol=1e-9)
    np.testing.assert_allclose(student_log_density(dof, z), stats.t.logpdf(z, dof), rtol=1e-9)
    assert student_quantile(dof, 0.995) == pytest.approx(stats.t.ppf(0.995, dof), rel=1e-8)


def test_interval_and_probability_agree() -> None:
    """Half of what an interval leaves out lies above it; a marginal without spread is a point."""
    belief = StudentT(np.array([0.2, 0.5]), np.array([0.1, 0.0]), 7.0)
    _, upper = belief.interval(0.9)
    assert belief.probability_above(float(upper[0]))[0] == pytest.approx(0.05)
    assert belief.probability_above(0.4)[1] == 1.0
    assert belief.probability_above(0.5)[1] == 0.0
