"""Every field of a submission, at its bounds and beyond."""

import math

import pytest

from cases import for_each
from headrace.core.errors import DataError, LimitError
from headrace.jobs.submission import FIELDS, SHAPES, SubmissionLimits, check_nesting, format_value

LIMITS = SubmissionLimits(tags_max=2, tag_chars_max=5, notify_max=1, options_bytes_max=30)
YEAR_9999_S = 251_000_000_000
JOB_ID = "019dd1ad-0000-7000-8000-000000000001"

GOOD = {
    "model": ["m", "A.b-c_1", "m@1", "m@2026.1"],
    "endpoint": ["churn", "0", "x" * 128],
    "kind": ["infer", "transform", "stream"],
    "queue": ["default", "0", "x" * 128],
    "input_uri": ["s3://b/k", "gs://b/a%20b", "https://h/x?y=1"],
    "content_type": ["a/b", "text/csv; header=present"],
    "accept": ["application/json"],
    "output_uri": ["s3://b", "s3://b/x/"],
    "key": ["k", "a/b", "ö", "x" * 512],
    "if_exists": ["fail", "replace", "version"],
    "region": ["eu-west-1", "hall.2_b", "x" * 63],
    "options": [{}, {"a": [1, None]}, {"a": "\\u0000"}],
    "priority": [0, 9],
    "delay_s": [0, 0.001, 366 * 86_400],
    "attempts_max": [1, 100],
    "time_limit_s": [0.1, 30 * 86_400],
    "time_to_live_s": [1],
    "deadline_s": [1e-3],
    "after": [[], [JOB_ID], [f"{JOB_ID[:-2]}{n:02}" for n in range(64)]],
    "tags": [{}, {"a": "", "b.c": "ääääá"}],
    "notify": [[], [{"a": 1}]],
    "correlation_id": ["c", "x" * 255],
}
BAD = {
    "if_exists": ["", "rename", None, 1, []],
    "model": ["", "a b", "../m", "ä", "e\u0301", "m@", "-m", "m\x00", 1, None, "x" * 129],
    "kind": ["", "INFER", None, 1, []],
    "queue": ["", "a/b", "x" * 129, 1],
    "endpoint": ["", "a/b", "x" * 129, 1, None],
    "input_uri": [
        "",
        " s3://b/k",
        "gopher://h/",
        "s3:///k",
        "s3://b/\x00",
        "http://u:p@h/",
        "s3://b\\c/k",
        7,
    ],
    "content_type": ["", "ä/b", "a\nb", "x" * 256],
    "accept": [""],
    "output_uri": ["", "x\r\ny"],
    "key": ["", "a\nb", "x" * 513, 5],
    "region": ["", "eu west", "-a", "x" * 64, "ä", None, 5],
    "options": [[], "x", {"a": "\x00"}, {"a\x00": 1}],
    "priority": [-1, 10, 2**31, 1.5, 10.0, 1e300, True, "1", None],
    "delay_s": [-1, YEAR_9999_S, math.inf, math.nan, True, "1"],
    "attempts_max": [0, 101, 1.5],
    "time_limit_s": [0, -1, 30 * 86_400 + 1],
    "time_to_live_s": [0, YEAR_9999_S],
    "deadline_s": [0, "x"],
    "after": [{}, "x", ["x"], [JOB_ID, JOB_ID], [None], [JOB_ID.upper()]],
    "tags": [[], {"": "x"}, {"a b": "x"}, {"a": 1}, {"a": "\n"}, {"ä": "x"}],
    "notify": [{}, ["x"], "x"],
    "correlation_id": ["", "a b", "x" * 256],
}
TOO_MUCH = {
    "input_uri": ["s3://b/" + "x" * 5000],
    "options": [{"a": "x" * 40}],
    "after": [[f"{JOB_ID[:-2]}{n:02}" for n in range(65)]],
    "tags": [{"a": "x", "b": "x", "c": "x"}, {"a": "x" * 6}],
    "notify": [[{}, {}], [{"a": "x" * 40}]],
}


def cases(table):
    return [(name, value) for name in table for value in table[name]]


@for_each(("name", "value"), cases(GOOD))
def test_valid_values_are_accepted(name, value):
    read = FIELDS[name](name, value, LIMITS)
    expected = (
        round(value * 1000) if name == "delay_s" else tuple(value) if name in ("notify", "after") else value
    )
    assert read == expected


@for_each(("name", "value"), cases(BAD))
def test_invalid_values_are_refused_by_name(name, value):
    with pytest.raises(DataError) as refused:
        FIELDS[name](name, value, LIMITS)
    assert str(refused.value).startswith(name)
    assert "\n" not in str(refused.value)


@for_each(("name", "value"), cases(TOO_MUCH))
def test_exceeded_limits_raise_limit_error(name, value):
    with pytest.raises(LimitError, match=f"^{name}"):
        FIELDS[name](name, value, LIMITS)


def test_every_field_has_cases_and_a_shape():
    assert set(GOOD) == set(BAD) == set(FIELDS) == set(SHAPES)


def test_formatted_value_is_one_short_line():
    assert format_value("a\nb") == "'a\\nb'"
    assert len(format_value("x" * 10_000)) < 100


def test_nesting_counts_lists_and_objects():
    check_nesting({"a": [1, {"b": 2}]}, 4)
    with pytest.raises(LimitError, match="deeper than 3 levels"):
        check_nesting({"a": [1, {"b": 2}]}, 3)
