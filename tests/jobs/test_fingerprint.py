"""Fingerprints of failures: details do not matter, the rest does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.jobs.fingerprint import fingerprint_of, message_pattern


@pytest.mark.parametrize(
    ("message", "pattern"),
    [
        ("row 17 of 2,000: 3.5 is too large", "row <n> of <n>: <n> is too large"),
        ("cannot read s3://bucket/day=7/part-3.csv", "cannot read <uri>"),
        ("HTTP 503 from https://models.example/v2/models/m/infer", "HTTP <n> from <uri>"),
        ("no such file: /var/lib/x/model.onnx", "no such file: <path>"),
        ("job 01a2007b-f2f8-7916-a901-e223a26ee99e is gone", "job <id> is gone"),
        ("object at 0x7f4426269c10", "object at <id>"),
        ("digest 9f86d081884c7d65 differs", "digest <id> differs"),
        ("invalid value 'decade' in column 'age'", "invalid value 'decade' in column 'age'"),
        ("first line\nTraceback: line 7", "first line"),
        ("  ", ""),
    ],
)
def test_details_of_a_message_are_replaced(message, pattern):
    assert message_pattern(message) == pattern


def test_equal_failures_have_one_fingerprint():
    one = fingerprint_of("m", "model", "ValueError", "row 1 is odd")
    assert one == fingerprint_of("m", "model", "ValueError", "row 234 is odd")
    assert len(one) == 16


@pytest.mark.parametrize("changed", range(4))
def test_each_part_of_a_failure_counts(changed):
    parts = ["m", "model", "ValueError", "row 1 is odd"]
    other = [*parts[:changed], "other", *parts[changed + 1 :]]
    assert fingerprint_of(*parts) != fingerprint_of(*other)


@given(st.text(), st.integers(min_value=0))
def test_any_message_has_a_bounded_pattern(message, number):
    assert len(message_pattern(message)) <= 200
    assert message_pattern(f"x {number} y") == "x <n> y"
