import math

import numpy as np
import pytest

from headrace.transforms.series import (
    COLUMNS_MAX,
    SAMPLE_TEXTS_MAX,
    SAMPLE_VALUES_MAX,
    TEXT_CHARACTERS_MAX,
    NumberWatch,
    Series,
    TextWatch,
    writable,
)


def _numbers(*batches, columns=1) -> list[Series]:
    series = [Series(f"y[{i}]", "float") for i in range(columns)]
    watch = NumberWatch(series)
    for turn, batch in enumerate(batches):
        watch.look(batch, turn)
    watch.count()
    return series


def _texts(*batches) -> Series:
    series = Series("t", "text")
    watch = TextWatch([series])
    for turn, batch in enumerate(batches):
        watch.look(batch, turn)
    watch.count()
    return series


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8", "i1", "i8", "u8", "?"])
def test_small_batches_are_seen_whole(dtype):
    data = (np.arange(200) % 2).astype(dtype)
    (found,) = _numbers(data, data)
    assert (found.rows, found.seen) == (400, 400)
    assert found.distribution.distinct == {0.0: 200, 1.0: 200}


def test_of_large_batches_some_rows_are_seen_at_even_distances():
    rows = 10 * SAMPLE_VALUES_MAX
    (found,) = _numbers(np.arange(rows, dtype=np.float64))
    assert found.rows == rows
    assert found.seen == SAMPLE_VALUES_MAX
    assert found.distribution.mean == pytest.approx(rows / 2, rel=0.01)


def test_what_is_periodic_in_the_source_is_seen_from_all_sides():
    """Every 16th record is another: a fixed distance of 16 would see only these, or none of them."""
    data = (np.arange(16 * SAMPLE_VALUES_MAX) % 16 == 0).astype(np.float32)
    (found,) = _numbers(*[data] * 32)
    assert found.distribution.mean == pytest.approx(1 / 16)


def test_more_rows_than_wait_together_are_all_counted():
    batches = [np.full(200, i, np.float32) for i in range(100)]
    (found,) = _numbers(*batches)
    assert (found.rows, found.seen) == (20_000, 20_000)
    assert found.distribution.mean == pytest.approx(49.5)


@pytest.mark.parametrize("shape", [(3, 5), (3, 2, 3), (3, 1, 4, 5), (3, 100), (3, 3, 1, 7), (3, 2, 2, 2, 2)])
def test_the_first_values_of_a_row_are_seen_each_in_its_column(shape):
    data = np.arange(math.prod(shape), dtype=np.float64).reshape(shape)
    flat = data.reshape(shape[0], -1)[:, :COLUMNS_MAX]
    series = _numbers(data, columns=flat.shape[1])
    for column, found in enumerate(series):
        assert found.distribution.distinct == dict.fromkeys(flat[:, column].tolist(), 1)


def test_what_is_seen_is_a_copy():
    """A model may write its next answer into the same buffer."""
    data = np.ones(4)
    series = [Series("y", "float")]
    watch = NumberWatch(series)
    watch.look(data, 0)
    data[:] = 7
    watch.count()
    assert series[0].distribution.distinct == {1.0: 4}


def test_texts_of_all_kinds():
    found = _texts(
        np.array(["a", b"a", b"\xff", None, 5], object),
        np.array([["b", "x"], ["b", "y"]], object),
        np.array(["a"]),
        np.array([b"a"]),
    )
    assert found.rows == found.seen == 9
    assert found.texts.counts == {"a": 4, "\ufffd": 1, "None": 1, "5": 1, "b": 2}


def test_long_texts_are_cut_and_their_lengths_are_not():
    found = _texts(np.array(["x" * 1000 + "y", "x" * 1000], object))
    assert found.texts.counts == {"x" * TEXT_CHARACTERS_MAX: 2}
    assert (found.distribution.minimum, found.distribution.maximum) == (1000, 1001)


def test_of_many_texts_some_are_seen():
    found = _texts(np.array(["a"] * 10_000, object))
    assert found.rows == 10_000
    assert SAMPLE_TEXTS_MAX - 1 <= found.seen == found.texts.total <= SAMPLE_TEXTS_MAX


def test_many_texts_are_counted_before_too_many_wait():
    found = _texts(*[np.array(["a", "b"] * 8, object)] * 1000)
    assert found.texts.counts == {"a": 8000, "b": 8000}


@pytest.mark.parametrize("made", [_numbers(np.array([1.0, math.nan]))[0], _texts(np.array(["a"], object))])
def test_it_is_read_back(made):
    assert Series.from_json(made.to_json()).to_json() == made.to_json()


def test_names_that_are_not_utf8_can_be_written():
    assert writable("a\udcff").encode() == b"a\\udcff"
