"""TFRecord: every checksum is checked, and damage costs no more than it must."""

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.framed_files import masked, tfrecord, tfrecord_frame
from headrace.core.block import RAW_BYTES_KEPT_MAX, FailureKind, Position
from headrace.core.errors import CorruptError, MissingExtraError, TruncatedError
from headrace.formats.read import ReadOptions, make_format
from headrace.formats.tfrecord import TfRecordFormat, masked_crc32c

RECORDS = st.lists(st.binary(max_size=40), max_size=12)


def read(data: bytes, size: int = 1 << 20, **options):
    """Records with their bytes, failures with their reason, and the error that ended it."""
    found, error = [], None
    chunks = [data[i : i + size] for i in range(0, len(data), size)]
    try:
        for block in TfRecordFormat(**options).blocks(chunks, Position("o", byte=7)):
            found += [(block.position(i), block.record(i)) for i in range(len(block))]
            found += [(f.position, f) for f in block.failures]
    except CorruptError as caught:
        error = caught
    return found, error


def test_the_mask_is_the_one_that_files_have():
    """The first twelve bytes of every TensorBoard log, whose first record is 24 bytes long."""
    header = bytes.fromhex("1800000000000000a37f4b22")
    assert masked_crc32c(header[:8]) == int.from_bytes(header[8:], "little")


@given(RECORDS, st.integers(1, 60), st.integers(1, 200))
def test_records_come_back_with_the_place_of_their_header(records, size, block_bytes_max):
    found, error = read(tfrecord(records), size, block_bytes_max=block_bytes_max)
    places, byte = [], 7
    for number, record in enumerate(records):
        places.append((Position("o", record=number, line=1, byte=byte), record))
        byte += 16 + len(record)
    assert (found, error) == (places, None)


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_a_flipped_bit_costs_a_record_or_the_rest(records, data, size):
    """A record, when it is in it or in its checksum; the rest, when nothing tells any more how long it is."""
    clean = tfrecord(records)
    bit = data.draw(st.integers(0, 8 * len(clean) - 1))
    damaged = bytearray(clean)
    damaged[bit // 8] ^= 1 << bit % 8
    found, error = read(bytes(damaged), size)
    starts = [sum(16 + len(r) for r in records[:i]) for i in range(len(records) + 1)]
    hit = max(i for i, start in enumerate(starts) if start <= bit // 8)
    assert [r for _, r in found[:hit]] == records[:hit]
    if bit // 8 < starts[hit] + 12:
        assert len(found) == hit
        assert type(error) is CorruptError
        assert error.byte == 7 + starts[hit]
        return
    failure = found[hit][1]
    assert (failure.kind, failure.position.record) == (FailureKind.FORMAT, hit)
    assert "checksum" in failure.why
    assert failure.raw == bytes(damaged)[starts[hit] + 12 : starts[hit + 1] - 4]
    assert [r for _, r in found[hit + 1 :]] == records[hit + 1 :]
    assert error is None


@given(RECORDS.filter(len), st.data(), st.integers(1, 60))
def test_an_early_end_is_told_after_all_whole_records(records, data, size):
    clean = tfrecord(records)
    stop = data.draw(st.integers(0, len(clean) - 1))
    found, error = read(clean[:stop], size)
    ends = [sum(16 + len(r) for r in records[: i + 1]) for i in range(len(records))]
    whole = sum(end <= stop for end in ends)
    assert [r for _, r in found] == records[:whole]
    if stop in (0, *ends):
        assert error is None
    else:
        assert isinstance(error, TruncatedError)
        assert error.byte == 7 + stop


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 60), st.integers(1, 20))
def test_a_record_that_is_too_long_is_one_failure_and_the_next_is_read(sizes, size, record_bytes_max):
    records = [bytes([i]) * n for i, n in enumerate(sizes)]
    found, error = read(tfrecord(records), size, record_bytes_max=record_bytes_max)
    assert error is None
    assert [p.record for p, _ in found] == list(range(len(records)))
    for (_, came), record in zip(found, records, strict=True):
        if len(record) <= record_bytes_max:
            assert came == record
        else:
            assert (came.why, came.raw) == (
                f"longer than record_bytes_max={record_bytes_max}",
                record[:record_bytes_max],
            )


def test_a_long_record_that_is_cut_off_is_a_failure_and_then_the_end():
    """Its start is kept, however long it is said to be: nothing waits for a terabyte."""
    length = struct.pack("<Q", 1 << 40)
    data = tfrecord_frame(b"a") + length + masked(length) + b"x" * 100_000
    found, error = read(data, 999, record_bytes_max=90_000)
    assert [p.record for p, _ in found] == [0, 1]
    assert found[1][1].raw == b"x" * RAW_BYTES_KEPT_MAX
    assert isinstance(error, TruncatedError)
    assert error.byte == 7 + len(data)


def test_what_is_no_tfrecord_is_refused_at_once():
    found, error = read(b"a,b,c\n1,2,3\n" * 10)
    assert (found, error.byte) == ([], 7)
    assert "not TFRecord at byte 7: the checksum of a record's length" in str(error)


def test_one_long_record_in_small_chunks_is_joined_once():
    """Not once a chunk: that would be gigabytes of copies."""
    record = b"x" * (1 << 22)
    found, _ = read(tfrecord([record, b"y"]), 100)
    assert [r for _, r in found] == [record, b"y"]


def test_without_the_extra_the_format_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    for module in ("crc32c", "tfrecord"):
        monkeypatch.delitem(sys.modules, f"headrace.formats.{module}")
    with pytest.raises(MissingExtraError, match=r"reading TFRecord files needs .*headrace\[tfrecord\]"):
        make_format("a", "tfrecord", ReadOptions())
