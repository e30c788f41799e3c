"""Generated loads: patterns, run times, seeds, and the errors of their options."""

from math import exp
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from headrace.core.errors import ConfigError
from headrace.core.settings import declared_settings
from headrace.scaling.planner.arrivals import DAYS_MAX, P95_RATIO_MAX, LoadOptions, generated_load
from headrace.scaling.planner.load import DAY_S, MONDAY_MS
from levels import examples

PATTERNS = ("even", "random", "office", "burst")
NINE_S, SEVENTEEN_S = 9 * 3600.0, 17 * 3600.0


def generated(**values):
    return generated_load(LoadOptions(**{"run_s": 300.0, **values}))


@settings(max_examples=examples(2))
@given(
    pattern=st.sampled_from(PATTERNS),
    jobs_per_day=st.floats(0.1, 500),
    days=st.integers(1, 40),
    seed=st.integers(0, 2**64),
    spread=st.none() | st.floats(1, 3.86),
)
def test_generated_load_has_its_number_of_jobs_in_order(pattern, jobs_per_day, days, seed, spread):
    options = LoadOptions(jobs_per_day, pattern, days, 20.0, spread and 20.0 * spread, seed)
    if not round(jobs_per_day * days):
        with pytest.raises(ConfigError, match="make no job"):
            generated_load(options)
        return
    load = generated_load(options)
    assert len(load.arrived_s) == len(load.run_s) == round(jobs_per_day * days)
    assert (load.span_s, load.began_at_ms, load.due_s) == (days * DAY_S, MONDAY_MS, None)
    assert load.arrived_s.dtype == load.run_s.dtype == np.float64
    assert 0 <= load.arrived_s[0] <= load.arrived_s[-1] < load.span_s
    assert (np.diff(load.arrived_s) >= 0).all()
    assert (load.run_s > 0).all()
    if pattern in ("office", "burst"):
        in_day_s = load.arrived_s % DAY_S
        assert (in_day_s >= NINE_S).all()
        assert (in_day_s < SEVENTEEN_S).all()
    again = generated_load(options)
    assert (again.arrived_s == load.arrived_s).all()
    assert (again.run_s == load.run_s).all()


def test_even_arrivals_of_the_known_example():
    """The example of the documentation: 100 jobs of 300 s a day."""
    load = generated(arrivals="even")
    assert load.busy_s / load.days == 30_000
    assert load.arrived_s.tolist() == [864.0 * number for number in range(700)]
    assert set(load.run_s) == {300.0}


def test_bursts_are_at_nine_with_equal_numbers_of_jobs():
    load = generated(arrivals="burst", jobs_per_day=33.4, days=5)
    assert set(load.arrived_s % DAY_S) == {NINE_S}
    assert np.bincount((load.arrived_s // DAY_S).astype(int)).tolist() == [34, 33, 34, 33, 33]
    rare = generated(arrivals="burst", jobs_per_day=0.5, days=4)
    assert (rare.arrived_s // DAY_S).tolist() == [0, 2]


@pytest.mark.parametrize(("pattern", "open_s"), [("random", DAY_S), ("office", SEVENTEEN_S - NINE_S)])
def test_random_arrivals_are_those_of_a_poisson_process(pattern, open_s):
    """Numbers of jobs in small intervals have their mean as their variance, and are independent."""
    load = generated(arrivals=pattern, jobs_per_day=2000, days=100)
    in_day_s = load.arrived_s % DAY_S - (NINE_S if pattern == "office" else 0)
    places = (load.arrived_s // DAY_S * 200 + in_day_s / open_s * 200).astype(int)
    counts = np.bincount(places, minlength=20_000)
    assert len(counts) == 20_000
    assert counts.mean() == 10
    assert counts.var() == pytest.approx(10, rel=0.05)
    assert abs(np.corrcoef(counts[1:], counts[:-1])[0, 1]) < 0.03
    by_hour = np.histogram(in_day_s, bins=8, range=(0, open_s))[0]
    assert by_hour == pytest.approx(np.full(8, 25_000), rel=0.03)


@settings(max_examples=examples(1))
@given(mean_s=st.floats(0.01, 1e5), ratio=st.floats(1, 3.5), seed=st.integers(0, 1000))
def test_drawn_run_times_have_their_mean_and_percentile(mean_s, ratio, seed):
    load = generated(jobs_per_day=50_000, days=4, run_s=mean_s, run_p95_s=mean_s * ratio, seed=seed)
    assert load.run_s.mean() == pytest.approx(mean_s, rel=0.06)
    assert np.quantile(load.run_s, 0.95) == pytest.approx(mean_s * ratio, rel=0.06)


def test_drawn_run_times_are_log_normal_with_the_smaller_spread():
    logarithms = np.log(generated(jobs_per_day=100_000, days=2, run_p95_s=900.0).run_s)
    deviations = (logarithms - logarithms.mean()) / logarithms.std()
    assert abs((deviations**3).mean()) < 0.03
    assert (deviations**4).mean() == pytest.approx(3, abs=0.06)
    # The other law with this mean and percentile has a standard deviation of 2.36.
    assert logarithms.std() == pytest.approx(0.932, abs=0.02)


def test_extreme_percentiles_are_possible():
    assert set(generated(run_p95_s=300.0).run_s) == {300.0}
    most = generated(jobs_per_day=1e5, run_s=1.0, run_p95_s=P95_RATIO_MAX)
    assert np.log(most.run_s).std() == pytest.approx(1.645, abs=0.02)
    assert pytest.approx(exp(1.6448536**2 / 2)) == P95_RATIO_MAX


def test_seed_changes_arrivals_and_run_times_and_run_times_do_not_change_arrivals():
    one, other = (generated(run_p95_s=600.0, seed=seed) for seed in (1, 2))
    assert (one.arrived_s != other.arrived_s).all()
    assert (one.run_s != other.run_s).all()
    assert (generated(seed=1).arrived_s == one.arrived_s).all()
    assert abs(np.corrcoef(one.arrived_s, one.run_s)[0, 1]) < 0.15


@for_each("pattern", PATTERNS)
def test_million_jobs_take_less_than_two_seconds(pattern):
    began_s = perf_counter()
    load = generated(arrivals=pattern, jobs_per_day=1e6 / 7, run_p95_s=900.0)
    assert len(load.run_s) == 1_000_000
    assert perf_counter() - began_s < 2


@for_each(
    ("values", "message"),
    [
        ({"run_s": None}, "^run_s is missing: give the mean seconds of a job$"),
        (
            {"jobs_per_day": 1e6, "days": 11},
            r"^11,000,000 jobs are more than 10,000,000: reduce jobs_per_day",
        ),
        ({"jobs_per_day": 1e308, "days": 1000}, "^inf jobs are more than"),
        ({"jobs_per_day": 0.4, "days": 1}, r"^jobs_per_day \(0.4\) and days \(1\) make no job"),
    ],
)
def test_load_that_cannot_be_generated_is_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        generated(**values)


@for_each(
    ("values", "message"),
    [
        ({"jobs_per_day": 0}, "jobs_per_day must be a number above 0, not 0"),
        ({"jobs_per_day": np.nan}, "jobs_per_day must be"),
        ({"arrivals": "never"}, "arrivals must be one of even, random, office, burst, not 'never'"),
        ({"days": 0}, f"days must be a whole number from 1 to {DAYS_MAX}"),
        ({"days": DAYS_MAX + 1}, "days must be"),
        ({"days": 1.5}, "days must be"),
        ({"run_s": 0}, "run_s must be a number above 0"),
        ({"run_s": np.inf}, "run_s must be"),
        ({"run_p95_s": -1.0, "run_s": 1.0}, "run_p95_s must be a number above 0"),
        ({"seed": -1}, "seed must be a whole number of 0 or more"),
        ({"run_p95_s": 5.0}, "^run_p95_s needs run_s: give the mean"),
        (
            {"run_s": 300.0, "run_p95_s": 299.0},
            r"^run_p95_s must be from 300 to 1160 seconds, not 299: .* at most 3.868 times the mean",
        ),
        ({"run_s": 1.0, "run_p95_s": 3.869}, r"^run_p95_s must be from 1 to 3.868 seconds, not 3.869"),
    ],
)
def test_invalid_options_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        LoadOptions(**values)


def test_each_option_is_declared():
    names = [each.name for each in declared_settings(LoadOptions)]
    assert names == ["jobs_per_day", "arrivals", "days", "run_s", "run_p95_s", "seed"]
