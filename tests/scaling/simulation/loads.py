"""Loads for simulations: times of submission in seconds, ascending, reproducible by their seeds."""

import random
from collections.abc import Callable

HOUR_S = 3600.0


def poisson(rate_per_s: float, from_s: float, until_s: float, *, seed: int = 1) -> list[float]:
    """Return the times of a Poisson process."""
    draw = random.Random(seed)
    times: list[float] = []
    at_s = from_s + draw.expovariate(rate_per_s)
    while at_s < until_s:
        times.append(at_s)
        at_s += draw.expovariate(rate_per_s)
    return times


def bursts(count: int, period_s: float, until_s: float, *, from_s: float = 0.0) -> list[float]:
    """Return the times of `count` jobs at once in each period."""
    periods = int((until_s - from_s) // period_s) + 1
    return [from_s + number * period_s for number in range(periods) for _ in range(count)]


def office_hours(days: int, rate_per_s: float, *, seed: int = 1) -> list[float]:
    """Return the times of a Poisson process from eight to eighteen o'clock, and a tenth of it at night."""
    times: list[float] = []
    for day in range(days):
        began_s = day * 24 * HOUR_S
        for from_h, until_h, share in ((0, 8, 0.02), (8, 18, 1.0), (18, 24, 0.02)):
            seed += 1
            times += poisson(
                rate_per_s * share, began_s + from_h * HOUR_S, began_s + until_h * HOUR_S, seed=seed
            )
    return times


def exponential(mean_s: float, *, seed: int = 2) -> Callable[[], float]:
    """Return a function that draws run times with this mean."""
    draw = random.Random(seed)
    return lambda: draw.expovariate(1 / mean_s)
