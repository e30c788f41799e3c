import itertools
import math
import sys
from collections import Counter
from fractions import Fraction
from random import Random

import numpy as np
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.reports.distribution import BINS_MAX, DISTINCT_MAX, Distribution, FrequentTexts

_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_VALUES = st.lists(_FLOATS, min_size=1, max_size=60)


def _of(*parts) -> Distribution:
    made = Distribution()
    for part in parts:
        made.add(np.array(part, np.float64))
    return made


def _exact(distribution: Distribution) -> dict:
    """Return all but the mean, which is rounded."""
    found = distribution.to_json()
    del found["mean"]
    return found


@given(_VALUES)
@example([0.0, 5e-324, -5e-324])
@example([-1e300, 1e-30, -1e-30])
@example([1.7e308, -1.7e308])
def test_every_value_is_in_its_bin(values):
    found = _of(values)
    assert found.count == len(values) == found.bins.sum()
    assert (found.minimum, found.maximum) == (min(values), max(values))
    width = Fraction(2) ** found.exponent
    expected = Counter(math.floor(Fraction(v) / width) for v in values)
    assert {found.low + int(i): int(found.bins[i]) for i in np.flatnonzero(found.bins)} == expected


@given(_VALUES, st.randoms(use_true_random=False), st.lists(st.integers(0, 60), max_size=4))
@example([-1e300, -1e-30, 1e-30], Random(3), [1, 2])
@example([0.0, 1e-200, -1e-200, 1.0], Random(1), [1, 2, 3])
def test_counts_do_not_depend_on_order_or_merging(values, random, cuts):
    shuffled = list(values)
    random.shuffle(shuffled)
    at = [0, *sorted(cuts), len(values)]
    parts = [shuffled[a:b] for a, b in itertools.pairwise(at)]
    whole, ordered, together = _of(values), _of(*parts), Distribution()
    for part in parts:
        together.add_all(_of(part))
    assert _exact(ordered) == _exact(whole)
    assert _exact(together) == _exact(whole)
    largest = max(map(abs, values))
    assert together.mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-9 * largest)


@given(_VALUES)
@example([sys.float_info.max] * 79)
def test_mean_is_exact_without_overflow(values):
    expected = float(sum(map(Fraction, values)) / len(values))
    assert _of(values).mean == pytest.approx(expected, rel=1e-9, abs=1e-12 * max(map(abs, values)) + 1e-300)


@given(_VALUES, st.floats(0, 1))
def test_quantile_error_is_at_most_one_bin(values, share):
    found = _of(values)
    exact = sorted(values)[max(math.ceil(share * len(values)), 1) - 1]
    assert abs(found.quantile(share) - exact) <= found.width
    assert found.minimum <= found.quantile(share) <= found.maximum


def test_bins_are_narrow_compared_to_the_range():
    values = np.random.default_rng(7).normal(50, 3, 10_000)
    found = _of(values)
    assert found.width <= (values.max() - values.min()) / (BINS_MAX // 2 - 1)
    for share in (0.01, 0.25, 0.5, 0.9, 0.999):
        assert found.quantile(share) == pytest.approx(np.quantile(values, share), abs=2 * found.width)


def test_repeated_value_is_exact():
    found = _of([0.1] * 1000)
    assert found.quantile(0.5) == 0.1
    assert found.distinct == {0.1: 1000}


def test_empty_distribution_round_trips_without_quantiles():
    found = Distribution()
    assert math.isnan(found.quantile(0.5))
    assert _exact(Distribution.from_json(found.to_json())) == _exact(found)
    assert found.to_json()["minimum"] is None


def test_non_finite_values_are_counted_separately():
    found = _of([1.0, math.nan, math.inf, -math.inf, math.nan, 2.0])
    assert (found.count, found.nan, found.infinite) == (2, 2, 2)
    assert (found.minimum, found.maximum) == (1.0, 2.0)
    only = _of([math.nan])
    assert (only.count, only.nan) == (0, 1)
    only.add_all(found)
    assert (only.count, only.nan, only.infinite) == (2, 3, 2)


def test_added_array_is_not_modified():
    given_ = np.array([-0.0, 1.0])
    found = Distribution()
    found.add(given_)
    assert math.copysign(1, given_[0]) == -1
    assert [math.copysign(1, value) for value in found.distinct] == [1, 1]


def test_distinct_values_are_counted_up_to_the_limit():
    few = _of([1.0, 2.0, 1.0], range(3, DISTINCT_MAX + 1))
    assert few.distinct[1.0] == 2
    assert len(few.distinct) == DISTINCT_MAX
    few.add(np.array([-1.0]))
    assert few.distinct is None
    other = _of([1.0])
    other.add_all(few)
    assert other.distinct is None


@given(_VALUES, st.integers(1, 50), _FLOATS, _FLOATS)
def test_histogram_counts_every_value_once(values, bars, one, other):
    found = _of(values)
    low, high = sorted(min(max(v, found.minimum), found.maximum) for v in (one, other))
    drawn = found.histogram(bars, low, high)
    assert 1 <= len(drawn.counts) <= bars
    assert sum(drawn.counts) + drawn.below + drawn.above == len(values)
    whole = found.histogram(bars, found.minimum, found.maximum)
    assert (sum(whole.counts), whole.below, whole.above) == (len(values), 0, 0)
    assert whole.low <= found.minimum


def test_histogram_bars_cover_their_ranges():
    found = _of([0.5, 1.5, 1.6, 9.5])
    drawn = found.histogram(10, 0.5, 9.5)
    for bar, counted in enumerate(drawn.counts):
        low = drawn.low + bar * drawn.width
        assert counted == sum(low <= v < low + drawn.width for v in (0.5, 1.5, 1.6, 9.5))


@given(_VALUES)
def test_distribution_round_trips_through_json(values):
    found = _of(values)
    again = Distribution.from_json(orjson.loads(orjson.dumps(found.to_json())))
    assert again.to_json() == found.to_json()
    again.add(np.array([3.0]))
    found.add(np.array([3.0]))
    assert again.to_json() == found.to_json()


# Texts

_TEXTS = st.lists(st.integers(0, 90).map(str), max_size=400)


def _texts(*parts) -> FrequentTexts:
    made = FrequentTexts()
    for part in parts:
        made.add(Counter(part))
    return made


@given(_TEXTS, _TEXTS, st.booleans())
def test_text_counts_are_within_their_bounds(one, other, merge):
    if merge:
        found = _texts(one)
        found.add_all(_texts(other))
    else:
        found = _texts(one, other)
    exact = Counter(one + other)
    assert found.total == len(one) + len(other)
    assert len(found.counts) <= DISTINCT_MAX
    assert found.missed <= found.total / (DISTINCT_MAX + 1)
    for text, count in exact.items():
        assert found.counts.get(text, 0) <= count <= found.counts.get(text, 0) + found.missed


@given(st.lists(st.integers(0, DISTINCT_MAX - 1).map(str), max_size=300), st.randoms(use_true_random=False))
def test_few_texts_are_counted_exactly(texts, random):
    shuffled = list(texts)
    random.shuffle(shuffled)
    cut = len(texts) // 3
    found = _texts(shuffled[:cut])
    found.add_all(_texts(shuffled[cut:]))
    assert found.missed == 0
    assert (
        found.most_frequent()
        == _texts(texts).most_frequent()
        == sorted(Counter(texts).items(), key=lambda i: (-i[1], i[0]))
    )


def test_frequent_text_is_found_among_many():
    stream = [f"once {i}" if i % 3 else "often" for i in range(3000)]
    found = _texts(*(stream[i : i + 100] for i in range(0, 3000, 100)))
    assert found.most_frequent()[0][0] == "often"
    assert found.missed


def test_texts_round_trip_through_json():
    found = _texts([str(i) for i in range(70)], ["a", "a"])
    again = FrequentTexts.from_json(orjson.loads(orjson.dumps(found.to_json())))
    assert again.to_json() == found.to_json()


def test_merging_adds_missed_counts():
    rough = _texts([str(i) for i in range(DISTINCT_MAX + 10)] * 3)
    found = _texts(["a"])
    found.add_all(rough)
    assert rough.missed == found.missed == 3
