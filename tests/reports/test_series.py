import math

import numpy as np
import pytest

from cases import for_each
from headrace.reports.distribution import (
    COLUMNS_MAX,
    SAMPLE_TEXTS_MAX,
    SAMPLE_VALUES_MAX,
    TEXT_CHARACTERS_MAX,
    NumberSampler,
    Series,
    TextSampler,
    writable,
)


def _numbers(*batches, columns=1) -> list[Series]:
    series = [Series(f"y[{i}]", "float") for i in range(columns)]
    sampler = NumberSampler(series)
    for turn, batch in enumerate(batches):
        sampler.add(batch, turn)
    sampler.flush()
    return series


def _texts(*batches) -> Series:
    series = Series("t", "text")
    sampler = TextSampler([series])
    for turn, batch in enumerate(batches):
        sampler.add(batch, turn)
    sampler.flush()
    return series


@for_each("dtype", ["f2", "f4", "f8", "i1", "i8", "u8", "?"])
def test_small_batches_are_counted_completely(dtype):
    data = (np.arange(200) % 2).astype(dtype)
    (found,) = _numbers(data, data)
    assert (found.rows, found.seen) == (400, 400)
    assert found.distribution.distinct == {0.0: 200, 1.0: 200}


def test_large_batches_are_sampled_evenly():
    rows = 10 * SAMPLE_VALUES_MAX
    (found,) = _numbers(np.arange(rows, dtype=np.float64))
    assert found.rows == rows
    assert found.seen == SAMPLE_VALUES_MAX
    assert found.distribution.mean == pytest.approx(rows / 2, rel=0.01)


def test_periodic_sources_are_sampled_evenly():
    """Every 16th record differs: a fixed step of 16 would sample either only these or none of them."""
    data = (np.arange(16 * SAMPLE_VALUES_MAX) % 16 == 0).astype(np.float32)
    (found,) = _numbers(*[data] * 32)
    assert found.distribution.mean == pytest.approx(1 / 16)


def test_rows_beyond_the_buffer_are_counted():
    batches = [np.full(200, i, np.float32) for i in range(100)]
    (found,) = _numbers(*batches)
    assert (found.rows, found.seen) == (20_000, 20_000)
    assert found.distribution.mean == pytest.approx(49.5)


@for_each("shape", [(3, 5), (3, 2, 3), (3, 1, 4, 5), (3, 100), (3, 3, 1, 7), (3, 2, 2, 2, 2)])
def test_first_values_of_a_row_are_counted_by_column(shape):
    data = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    flat = data.reshape(shape[0], -1)[:, :COLUMNS_MAX]
    series = _numbers(data, columns=flat.shape[1])
    for column, found in enumerate(series):
        assert found.distribution.distinct == dict.fromkeys(flat[:, column].tolist(), 1)


def test_sampled_values_are_copied():
    """A model may write its next outputs into the same buffer."""
    data = np.ones(4)
    series = [Series("y", "float")]
    sampler = NumberSampler(series)
    sampler.add(data, 0)
    data[:] = 7
    sampler.flush()
    assert series[0].distribution.distinct == {1.0: 4}


def test_texts_of_all_types_are_counted():
    found = _texts(
        np.array(["a", b"a", b"\xff", None, 5], object),
        np.array([["b", "x"], ["b", "y"]], object),
        np.array(["a"]),
        np.array([b"a"]),
    )
    assert found.rows == found.seen == 9
    assert found.texts.counts == {"a": 4, "\ufffd": 1, "None": 1, "5": 1, "b": 2}


def test_long_texts_are_cut_but_lengths_are_not():
    found = _texts(np.array(["x" * 1000 + "y", "x" * 1000], object))
    assert found.texts.counts == {"x" * TEXT_CHARACTERS_MAX: 2}
    assert (found.distribution.minimum, found.distribution.maximum) == (1000, 1001)


def test_many_texts_are_sampled():
    found = _texts(np.array(["a"] * 10_000, object))
    assert found.rows == 10_000
    assert SAMPLE_TEXTS_MAX - 1 <= found.seen == found.texts.total <= SAMPLE_TEXTS_MAX


def test_texts_beyond_the_buffer_are_counted():
    found = _texts(*[np.array(["a", "b"] * 8, object)] * 1000)
    assert found.texts.counts == {"a": 8000, "b": 8000}


@for_each("made", [_numbers(np.array([1.0, math.nan]))[0], _texts(np.array(["a"], object))])
def test_series_round_trip_through_json(made):
    assert Series.from_json(made.to_json()).to_json() == made.to_json()


def test_non_utf8_names_become_writable():
    assert writable("a\udcff").encode() == b"a\\udcff"
