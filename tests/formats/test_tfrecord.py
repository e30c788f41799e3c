"""Tests of `TfRecordFormat` and its checksums: positions, damaged and truncated files."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.framed_files import masked_checksum, tfrecord, tfrecord_frame
from headrace.core.block import RAW_BYTES_KEPT_MAX, FailureKind, Position
from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.read import make_format
from headrace.formats.read_options import ReadOptions
from headrace.formats.tfrecord import TfRecordFormat, crc32c, masked_crc32c

RECORDS = st.lists(st.binary(max_size=40), max_size=12)


def read(data: bytes, size: int = 1 << 20, **options):
    """Return the records with their positions, the failures, and the error or None."""
    results, error = [], None
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    try:
        for block in TfRecordFormat(**options).blocks(chunks, Position("o", byte=7)):
            results += [(block.position(i), block.record(i)) for i in range(len(block))]
            results += [(f.position, f) for f in block.failures]
    except CorruptError as caught:
        error = caught
    return results, error


def test_masked_checksum_matches_a_real_file():
    """These are the first twelve bytes of every TensorBoard log: its first record has 24 bytes."""
    header = bytes.fromhex("1800000000000000a37f4b22")
    assert masked_crc32c(header[:8]) == int.from_bytes(header[8:], "little")


@given(RECORDS, st.integers(1, 60), st.integers(1, 200))
def test_records_have_the_position_of_their_header(records, size, block_bytes_max):
    results, error = read(tfrecord(records), size, block_bytes_max=block_bytes_max)
    expected, byte = [], 7
    for number, record in enumerate(records):
        expected.append((Position("o", record=number, line=1, byte=byte), record))
        byte += 16 + len(record)
    assert (results, error) == (expected, None)


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_flipped_bit_fails_one_record_or_ends_the_reading(records, data, size):
    """Damage of a record or its checksum fails the record; damage of a length ends the reading."""
    clean = tfrecord(records)
    bit = data.draw(st.integers(0, 8 * len(clean) - 1))
    damaged = bytearray(clean)
    damaged[bit // 8] ^= 1 << bit % 8
    results, error = read(bytes(damaged), size)
    starts = [sum(16 + len(r) for r in records[:i]) for i in range(len(records) + 1)]
    hit = max(i for i, start in enumerate(starts) if start <= bit // 8)
    assert [r for _, r in results[:hit]] == records[:hit]
    if bit // 8 < starts[hit] + 12:
        assert len(results) == hit
        assert type(error) is CorruptError
        assert error.byte == 7 + starts[hit]
        return
    failure = results[hit][1]
    assert (failure.kind, failure.position.record) == (FailureKind.FORMAT, hit)
    assert "checksum" in failure.why
    assert failure.raw == bytes(damaged)[starts[hit] + 12 : starts[hit + 1] - 4]
    assert [r for _, r in results[hit + 1 :]] == records[hit + 1 :]
    assert error is None


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_truncation_is_an_error_after_all_complete_records(records, data, size):
    clean = tfrecord(records)
    stop = data.draw(st.integers(0, len(clean) - 1))
    results, error = read(clean[:stop], size)
    ends = [sum(16 + len(r) for r in records[: i + 1]) for i in range(len(records))]
    whole = sum(end <= stop for end in ends)
    assert [r for _, r in results] == records[:whole]
    if stop in (0, *ends):
        assert error is None
    else:
        assert isinstance(error, TruncatedError)
        assert error.byte == 7 + stop


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 60), st.integers(1, 20))
def test_oversized_record_is_one_failure_and_reading_continues(sizes, size, record_bytes_max):
    records = [bytes([i]) * n for i, n in enumerate(sizes)]
    results, error = read(tfrecord(records), size, record_bytes_max=record_bytes_max)
    assert error is None
    assert [p.record for p, _ in results] == list(range(len(records)))
    for (_, result), record in zip(results, records, strict=True):
        if len(record) <= record_bytes_max:
            assert result == record
        else:
            assert (result.why, result.raw) == (
                f"longer than record_bytes_max={record_bytes_max}",
                record[:record_bytes_max],
            )


def test_truncated_oversized_record_is_a_failure_then_an_error():
    """The start of the record is kept; the reader does not wait for the claimed terabyte."""
    length = struct.pack("<Q", 1 << 40)
    data = tfrecord_frame(b"a") + length + masked_checksum(length) + b"x" * 100_000
    results, error = read(data, 999, record_bytes_max=90_000)
    assert [p.record for p, _ in results] == [0, 1]
    assert results[1][1].raw == b"x" * RAW_BYTES_KEPT_MAX
    assert isinstance(error, TruncatedError)
    assert error.byte == 7 + len(data)


def test_non_tfrecord_input_is_rejected_at_once():
    results, error = read(b"a,b,c\n1,2,3\n" * 10)
    assert (results, error.byte) == ([], 7)
    assert "invalid TFRecord at byte 7: the checksum of a record's length" in str(error)


def test_long_record_in_small_chunks_is_joined():
    """The parts are joined once; joining per chunk would copy gigabytes."""
    record = b"x" * (1 << 22)
    results, _ = read(tfrecord([record, b"y"]), 100)
    assert [r for _, r in results] == [record, b"y"]


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    monkeypatch.delitem(sys.modules, "headrace.formats.tfrecord")
    with pytest.raises(MissingExtraError, match=r"reading TFRecord files needs .*headrace\[tfrecord\]"):
        make_format("a", "tfrecord", ReadOptions())


# The checksum, with the values of RFC 3720 (B.4)


@for_each(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
    ],
)
def test_crc32c_matches_the_values_of_rfc_3720(data, expected):
    assert crc32c(data) == expected
