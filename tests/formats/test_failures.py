"""Tests of the failed-records file: written lines can be read, also by later versions."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import RAW_BYTES_KEPT_MAX, Failure, FailureKind, Position
from headrace.core.errors import DataError
from headrace.formats.failures import (
    FailedRecord,
    failed_record_line,
    failure_line,
    read_failed_records,
    read_failures,
)

GOLDEN = Path(__file__).parent.parent / "data" / "failures-v1.jsonl"

FAILURES = [
    Failure(
        Position("s3://bucket/a.csv", None, 41, 43, 9001),
        FailureKind.DECODE,
        'column 3 is "x"',
        b'1,2,"x"\n',
        1,
    ),
    Failure(
        Position("s3://bucket/b.tar.gz", "part/ü.csv", 0, 1, 0, 512),
        FailureKind.FORMAT,
        "not UTF-8",
        b"\xff\xfe,1",
    ),
    Failure(
        Position("file:///tmp/c.jsonl", None, 7, 8, 350), FailureKind.MODEL, "negative age", b'{"age": -1}', 3
    ),
    Failure(
        Position("file:///tmp/d.tar", os.fsdecode(b"\xe9.csv"), 2, 3, 10, 1024),
        FailureKind.OBJECT,
        "ends early",
    ),
]


def test_lines_equal_the_golden_file():
    """Later versions must read today's files: a change here needs a new version number."""
    assert b"".join(map(failure_line, FAILURES)) == GOLDEN.read_bytes()


def test_open_file_is_read():
    with GOLDEN.open("rb") as file:
        assert list(read_failures(file)) == FAILURES


names = st.one_of(
    st.text(max_size=8), st.binary(max_size=8).map(lambda raw: raw.decode(errors="surrogateescape"))
)
counts = st.integers(0, 2**63 - 1)
positions = st.builds(Position, names, st.one_of(st.none(), names), counts, counts, counts, counts)
failures = st.builds(
    Failure,
    positions,
    st.sampled_from(FailureKind),
    names,
    st.one_of(st.binary(max_size=20), st.text(max_size=20).map(str.encode)),
    st.integers(1, 1000),
)


@given(failures)
def test_failure_is_read_back_from_one_json_line(failure):
    line = failure_line(failure)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 1
    assert list(read_failures([line])) == [failure]


@for_each(("size", "truncated"), [(RAW_BYTES_KEPT_MAX - 1, False), (RAW_BYTES_KEPT_MAX, True)])
def test_record_of_the_kept_size_is_marked_truncated(size, truncated):
    fields = json.loads(failure_line(Failure(Position(), FailureKind.FORMAT, "too long", b"x" * size)))
    assert fields.get("raw_truncated", False) is truncated
    assert len(fields["raw"]) == size


def changed_line(**fields):
    return json.dumps({**json.loads(failure_line(FAILURES[0])), **fields}).encode()


@for_each(
    ("line", "message"),
    [
        (b"{", "JSONDecodeError"),
        (b"[1]", "TypeError"),
        (b"{}", "KeyError: 'v'"),
        (changed_line(v=2), "version 2 is not supported, only 1: upgrade headrace"),
        (changed_line(kind="other"), "'other' is not a valid FailureKind"),
        (changed_line(raw_base64="@"), "line 2 is not a failed record"),
        (b"\xff", "line 2 is not a failed record"),
    ],
)
def test_invalid_line_raises_with_its_number(line, message):
    found = read_failures([failure_line(FAILURES[0]), line])
    assert next(found) == FAILURES[0]
    with pytest.raises(DataError, match=message) as caught:
        next(found)
    assert str(caught.value).startswith("line 2 ")


def test_unknown_keys_are_ignored():
    """A later version may add keys without a new version number."""
    assert list(read_failures([changed_line(later="x")])) == [FAILURES[0]]


@given(st.lists(st.builds(FailedRecord, failures, counts, counts), max_size=4))
def test_failed_record_is_read_back_with_its_output_place(records):
    lines = [failed_record_line(record) for record in records]
    assert list(read_failed_records(lines)) == records
    # A reader that ignores output places reads the same failures.
    assert list(read_failures(lines)) == [record.failure for record in records]


def test_output_place_follows_the_keys_of_the_failure():
    line = failed_record_line(FailedRecord(FAILURES[0], 40, 999))
    assert line == failure_line(FAILURES[0])[:-2] + b',"output_row":40,"output_byte":999}\n'


def test_failure_without_output_place_is_not_a_failed_record():
    lines = [failed_record_line(FailedRecord(FAILURES[0], 1, 2)), failure_line(FAILURES[0])]
    found = read_failed_records(lines)
    assert next(found).output_row == 1
    with pytest.raises(DataError, match=r"line 2 is not a failed record.*output_row"):
        next(found)
