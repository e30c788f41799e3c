"""Tests of `RecordIOFormat`: whole and split records, positions, damaged files."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.framed_files import MAGIC, recordio, recordio_frame, recordio_part
from headrace.core.block import FailureKind, Position
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.frames import RecordIOFormat
from headrace.formats.read import position_after

RECORDS = st.lists(
    st.lists(st.sampled_from([MAGIC, b"a", b"bcd\n", b"\0" * 4, b"efghij"]), max_size=8).map(b"".join),
    max_size=10,
)


def read(data: bytes, size: int = 1 << 20, **options):
    """Return the records with their positions, the failures, and the error or None."""
    results, error = [], None
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    try:
        for block in RecordIOFormat(**options).blocks(chunks, Position("o", byte=7)):
            results += [(block.position(i), block.record(i)) for i in range(len(block))]
            results += [(f.position, f) for f in block.failures]
    except CorruptError as caught:
        error = caught
    return results, error


@given(RECORDS, st.integers(1, 60), st.integers(1, 100))
def test_records_have_the_position_of_their_header(records, size, block_bytes_max):
    """This includes records that contain the magic number and were split there."""
    results, error = read(recordio(records), size, block_bytes_max=block_bytes_max)
    expected, byte = [], 7
    for number, record in enumerate(records):
        expected.append((Position("o", record=number, line=1, byte=byte), record))
        byte += len(recordio_frame(record))
    assert (results, error) == (expected, None)


@given(RECORDS, st.integers(1, 60))
def test_position_after_a_block_is_the_next_header(records, size):
    data = recordio(records)
    expected = Position("o")
    for block in RecordIOFormat().blocks([data[i : i + size] for i in range(0, len(data), size)], expected):
        assert block.first == expected
        expected = position_after(block)
    assert expected == Position("o", record=len(records), byte=len(data))


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_truncation_is_an_error_after_all_complete_records(records, data, size):
    clean = recordio(records)
    stop = data.draw(st.integers(0, len(clean) - 1))
    results, error = read(clean[:stop], size)
    ends = [sum(len(recordio_frame(r)) for r in records[: i + 1]) for i in range(len(records))]
    assert [r for _, r in results] == records[: sum(end <= stop for end in ends)]
    if stop in (0, *ends):
        assert error is None
    else:
        assert isinstance(error, TruncatedError)
        assert error.byte == 7 + stop


@given(RECORDS, st.integers(1, 60), st.integers(1, 12))
def test_oversized_record_is_one_failure_and_reading_continues(records, size, record_bytes_max):
    """This includes records that are too long only when their parts are joined. The start is kept."""
    results, error = read(recordio(records), size, record_bytes_max=record_bytes_max)
    assert error is None
    assert [p.record for p, _ in results] == list(range(len(records)))
    for (_, result), record in zip(results, records, strict=True):
        if len(record) <= record_bytes_max:
            assert result == record
        else:
            assert (result.kind, result.why) == (
                FailureKind.FORMAT,
                f"longer than record_bytes_max={record_bytes_max}",
            )
            assert result.raw
            assert record[:record_bytes_max].startswith(result.raw)


@for_each(
    ("bad", "why"),
    [
        (b"oops" * 4, "a frame begins with 0x73706f6f instead of the magic number 0xced7230a"),
        (recordio_part(b"x", 2), "a record continues without a first frame"),
        (recordio_part(b"x", 3), "a record continues without a first frame"),
        (recordio_part(b"x", 5), "a frame has part number 5, but only 0 to 3 are defined"),
    ],
)
@for_each("size", [1, 5, 1000])
def test_invalid_frame_ends_the_reading(bad, why, size):
    results, error = read(recordio([b"one", b"two"]) + bad + recordio([b"three"]), size)
    assert [r for _, r in results] == [b"one", b"two"]
    assert type(error) is CorruptError
    assert error.byte == 7 + 24
    assert why in str(error)


@for_each("next_flag", [0, 1])
def test_record_within_another_ends_the_reading(next_flag):
    results, error = read(recordio_part(b"abcd", 1) + recordio_part(b"x", next_flag))
    assert (results, error.byte) == ([], 7 + 12)
    assert "a record begins within another" in str(error)


def test_dropped_parts_must_be_in_order():
    data = recordio_part(b"abcd", 1) + recordio_part(b"e", 3) + recordio_part(b"f", 3)
    results, error = read(data, record_bytes_max=2)
    assert len(results) == 1
    assert error.byte == 7 + 24


def test_newlines_in_records_are_not_counted():
    results, _ = read(recordio([b"\n\n\n", b"\n"]))
    assert [(p.line, p.byte) for p, _ in results] == [(1, 7), (1, 19)]


def test_largest_length_is_not_read_as_a_part_number():
    header = MAGIC + struct.pack("<I", (1 << 29) - 1)
    results, error = read(header + b"x" * 100, record_bytes_max=50)
    assert [f.raw for _, f in results] == [b"x" * 50]
    assert isinstance(error, TruncatedError)
