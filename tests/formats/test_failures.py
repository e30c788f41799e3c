"""The failed-records file: what is written can be read, also by the next versions."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


def test_the_written_form_is_kept():
    """Files of today must be readable by every later version; a change here needs a new version number."""
    assert b"".join(map(failure_line, FAILURES)) == GOLDEN.read_bytes()


def test_an_open_file_is_read():
    """Line by line, each failure as it was."""
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


@settings(deadline=None)
@given(failures)
def test_what_is_read_is_what_was_written(failure):
    """Any failure comes back whole, from exactly one line that any JSON reader takes."""
    line = failure_line(failure)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert json.loads(line)["v"] == 1
    assert list(read_failures([line])) == [failure]


@pytest.mark.parametrize(("size", "truncated"), [(RAW_BYTES_KEPT_MAX - 1, False), (RAW_BYTES_KEPT_MAX, True)])
def test_a_record_that_may_have_been_cut_says_so(size, truncated):
    """Who replays the file must know that the rest is in the source only."""
    fields = json.loads(failure_line(Failure(Position(), FailureKind.FORMAT, "too long", b"x" * size)))
    assert fields.get("raw_truncated", False) is truncated
    assert len(fields["raw"]) == size


def changed(**fields):
    return json.dumps({**json.loads(failure_line(FAILURES[0])), **fields}).encode()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"{", "JSONDecodeError"),
        (b"[1]", "TypeError"),
        (b"{}", "KeyError: 'v'"),
        (changed(v=2), "version 2, and this program knows 1: upgrade headrace"),
        (changed(kind="other"), "'other' is not a valid FailureKind"),
        (changed(raw_base64="@"), "line 2 is no failed record"),
        (b"\xff", "line 2 is no failed record"),
    ],
)
def test_a_line_that_is_no_failure_is_named(line, message):
    """The failures before it were given; the error says which line it is."""
    found = read_failures([failure_line(FAILURES[0]), line])
    assert next(found) == FAILURES[0]
    with pytest.raises(DataError, match=message) as caught:
        next(found)
    assert str(caught.value).startswith("line 2 ")


def test_keys_that_are_not_known_are_ignored():
    """So that a later version may add some without being a new one."""
    assert list(read_failures([changed(later="x")])) == [FAILURES[0]]


@settings(deadline=None)
@given(st.lists(st.builds(FailedRecord, failures, counts, counts), max_size=4))
def test_a_failed_record_comes_back_with_its_place(records):
    lines = [failed_record_line(record) for record in records]
    assert list(read_failed_records(lines)) == records
    # And for whoever knows nothing of places, it is a failure like another.
    assert list(read_failures(lines)) == [record.failure for record in records]


def test_a_place_is_written_behind_what_a_failure_is():
    line = failed_record_line(FailedRecord(FAILURES[0], 40, 999))
    assert line == failure_line(FAILURES[0])[:-2] + b',"output_row":40,"output_byte":999}\n'


def test_a_failure_without_a_place_is_no_failed_record():
    lines = [failed_record_line(FailedRecord(FAILURES[0], 1, 2)), failure_line(FAILURES[0])]
    found = read_failed_records(lines)
    assert next(found).output_row == 1
    with pytest.raises(DataError, match=r"line 2 is no failed record.*output_row"):
        next(found)
