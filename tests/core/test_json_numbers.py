"""Whole numbers of JSON: floats without a fraction, where a type has integers."""

from typing import Any

import msgspec
import pytest

from cases import for_each
from headrace.core.json_numbers import convert_json


class Inner(msgspec.Struct):
    count: int | None = None


class Outer(msgspec.Struct):
    inner: Inner = msgspec.field(default_factory=Inner)
    numbers: list[int] = []
    ratio: float = 0
    either: int | float = 0
    anything: Any = None


def test_whole_floats_become_integers_where_the_type_has_them():
    found = convert_json({"inner": {"count": 3.0}, "numbers": [1.0, 2e3], "ratio": 4.0}, Outer)
    assert found == Outer(Inner(3), [1, 2000], 4.0)
    assert [type(each) for each in (found.inner.count, *found.numbers, found.ratio)] == [int, int, int, float]


def test_other_values_keep_their_floats():
    found = convert_json({"inner": {"count": 1.0}, "either": 2.0, "anything": {"count": 3.0}}, Outer)
    assert (type(found.either), type(found.anything["count"])) == (float, float)


@for_each("value", [1.5, float("inf"), float("nan"), "1", "1.0", True])
def test_other_numbers_and_texts_are_no_integers(value):
    with pytest.raises(msgspec.ValidationError):
        convert_json({"inner": {"count": value}}, Outer)
