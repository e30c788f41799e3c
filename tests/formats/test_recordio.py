"""RecordIO: whole records, parted ones, and where they stand."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.framed_files import MAGIC, recordio, recordio_frame, recordio_part
from headrace.core.block import FailureKind, Position
from headrace.core.errors import CorruptError, TruncatedError
from headrace.formats.read import behind
from headrace.formats.recordio import RecordIOFormat

RECORDS = st.lists(
    st.lists(st.sampled_from([MAGIC, b"a", b"bcd\n", b"\0" * 4, b"efghij"]), max_size=8).map(b"".join),
    max_size=10,
)


def read(data: bytes, size: int = 1 << 20, **options):
    """Records with their bytes, failures with their reason, and the error that ended it."""
    found, error = [], None
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    try:
        for block in RecordIOFormat(**options).blocks(chunks, Position("o", byte=7)):
            found += [(block.position(i), block.record(i)) for i in range(len(block))]
            found += [(f.position, f) for f in block.failures]
    except CorruptError as caught:
        error = caught
    return found, error


@given(RECORDS, st.integers(1, 60), st.integers(1, 100))
def test_records_come_back_with_the_place_of_their_header(records, size, block_bytes_max):
    """Also those that hold the magic number, and were parted there."""
    found, error = read(recordio(records), size, block_bytes_max=block_bytes_max)
    places, byte = [], 7
    for number, record in enumerate(records):
        places.append((Position("o", record=number, line=1, byte=byte), record))
        byte += len(recordio_frame(record))
    assert (found, error) == (places, None)


@given(RECORDS, st.integers(1, 60))
def test_what_is_behind_a_block_is_the_next_header(records, size):
    data = recordio(records)
    expected = Position("o")
    for block in RecordIOFormat().blocks([data[i : i + size] for i in range(0, len(data), size)], expected):
        assert block.first == expected
        expected = behind(block)
    assert expected == Position("o", record=len(records), byte=len(data))


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_an_early_end_is_told_after_all_whole_records(records, data, size):
    clean = recordio(records)
    stop = data.draw(st.integers(0, len(clean) - 1))
    found, error = read(clean[:stop], size)
    ends = [sum(len(recordio_frame(r)) for r in records[: i + 1]) for i in range(len(records))]
    assert [r for _, r in found] == records[: sum(end <= stop for end in ends)]
    if stop in (0, *ends):
        assert error is None
    else:
        assert isinstance(error, TruncatedError)
        assert error.byte == 7 + stop


@given(RECORDS, st.integers(1, 60), st.integers(1, 12))
def test_a_record_that_is_too_long_is_one_failure_and_the_next_is_read(records, size, record_bytes_max):
    """Also one that is so by its parts together; what is kept of it is its start."""
    found, error = read(recordio(records), size, record_bytes_max=record_bytes_max)
    assert error is None
    assert [p.record for p, _ in found] == list(range(len(records)))
    for (_, came), record in zip(found, records, strict=True):
        if len(record) <= record_bytes_max:
            assert came == record
        else:
            assert (came.kind, came.why) == (
                FailureKind.FORMAT,
                f"longer than record_bytes_max={record_bytes_max}",
            )
            assert came.raw
            assert record[:record_bytes_max].startswith(came.raw)


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b"oops" * 4, "a frame begins with 0x73706f6f instead of the magic number 0xced7230a"),
        (recordio_part(b"x", 2), "a record goes on that never began"),
        (recordio_part(b"x", 3), "a record goes on that never began"),
        (recordio_part(b"x", 5), "a frame says that it is part 5 of a record"),
    ],
)
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_a_frame_that_is_none_ends_the_reading(bad, why, size):
    found, error = read(recordio([b"one", b"two"]) + bad + recordio([b"three"]), size)
    assert [r for _, r in found] == [b"one", b"two"]
    assert type(error) is CorruptError
    assert error.byte == 7 + 24
    assert why in str(error)


@pytest.mark.parametrize("next_flag", [0, 1])
def test_a_record_within_another_ends_the_reading(next_flag):
    found, error = read(recordio_part(b"abcd", 1) + recordio_part(b"x", next_flag))
    assert (found, error.byte) == ([], 7 + 12)
    assert "a record begins within another" in str(error)


def test_parts_that_are_dropped_must_be_in_order_too():
    data = recordio_part(b"abcd", 1) + recordio_part(b"e", 3) + recordio_part(b"f", 3)
    found, error = read(data, record_bytes_max=2)
    assert len(found) == 1
    assert error.byte == 7 + 24


def test_payloads_with_newlines_have_no_lines():
    found, _ = read(recordio([b"\n\n\n", b"\n"]))
    assert [(p.line, p.byte) for p, _ in found] == [(1, 7), (1, 19)]


def test_lengths_up_to_the_last_bit_are_read_as_such():
    """The largest length is no part's flag."""
    header = MAGIC + struct.pack("<I", (1 << 29) - 1)
    found, error = read(header + b"x" * 100, record_bytes_max=50)
    assert [f.raw for _, f in found] == [b"x" * 50]
    assert isinstance(error, TruncatedError)
