"""Percentiles of what was measured, as they are: no value between two others is made up."""

from collections.abc import Sequence
from math import ceil


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest of the values that at least so many percent are not above."""
    ordered = sorted(values)
    return ordered[max(0, ceil(len(ordered) * percent / 100) - 1)]
