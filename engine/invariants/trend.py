"""Robust trend of a short series."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

_EXACT_UP_TO = 40


def theil_sen_drift(times: Sequence[float]) -> float:
    """Relative change over the series: the median pairwise slope times its length, over the median.

    Source: Sen (1968), Estimates of the regression coefficient based on Kendall's tau.
    """
    if len(times) < 2:
        return 0.0
    slopes = [(times[j] - times[i]) / (j - i) for i in range(len(times)) for j in range(i + 1, len(times))]
    middle = statistics.median(times)
    return statistics.median(slopes) * (len(times) - 1) / middle if middle > 0 else 0.0


def mann_kendall_p(times: Sequence[float]) -> float:
    """Two-sided p-value of a monotone trend; exact for up to 40 values, counting ties as neither.

    Source: Mann (1945), Nonparametric tests against trend; Kendall (1938), A new measure of rank correlation.
    """
    n = len(times)
    score = sum((times[j] > times[i]) - (times[j] < times[i]) for i in range(n) for j in range(i + 1, n))
    if n < 2 or score == 0:
        return 1.0
    if n <= _EXACT_UP_TO:
        return _exact_p(n, abs(score))
    z = (abs(score) - 1) / math.sqrt(n * (n - 1) * (2 * n + 5) / 18)
    return math.erfc(z / math.sqrt(2))


def _exact_p(n: int, score: int) -> float:
    """Share of the n! orders with a score of at least `score` in size: inversions follow Mahonian numbers."""
    counts = [1]
    for size in range(2, n + 1):
        longer = [0] * (len(counts) + size - 1)
        for inversions, count in enumerate(counts):
            for shift in range(size):
                longer[inversions + shift] += count
        counts = longer
    pairs = n * (n - 1) // 2
    extreme = sum(count for inversions, count in enumerate(counts) if abs(pairs - 2 * inversions) >= score)
    return extreme / math.factorial(n)
