"""Tests of cutting text into records at line ends."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import FailureKind, Position
from headrace.core.errors import ConfigError, TruncatedError
from headrace.formats.csv import CsvFormat
from headrace.formats.lines import (
    PROBE_BYTES,
    RECORDS_MAX,
    NewlineScanner,
    RecordCutter,
    cut_text,
    newline_offsets,
)

FIRST = Position("memory://b/a.txt")


def cut_records(chunks, *, record_bytes_max=1000, block_bytes_max=1000):
    return list(
        cut_text(
            chunks,
            FIRST,
            NewlineScanner(),
            "any",
            record_bytes_max=record_bytes_max,
            block_bytes_max=block_bytes_max,
        )
    )


def entries(blocks) -> list[tuple]:
    """Return every record and failure with its number, line and byte, independent of the blocks."""
    found = []
    for block in blocks:
        for index in range(len(block)):
            at = block.position(index)
            found.append((at.record, at.line, at.byte, block.record(index)))
        found += [(f.position.record, f.position.line, f.position.byte, f.why) for f in block.failures]
    return found


def reference_entries(text: bytes, longest: int = 1000) -> list[tuple]:
    """Return the same entries, computed line by line."""
    found, byte = [], 0
    for number, line in enumerate(text.split(b"\n"), 1):
        ended = byte + len(line) < len(text)
        record = line.removesuffix(b"\r") if ended or line.endswith(b"\r") else line
        if len(line) > longest:
            found.append((len(found), number, byte, f"longer than record_bytes_max={longest}"))
        elif record:
            found.append((len(found), number, byte, record))
        byte += len(line) + 1
    return found


@given(
    text=st.text(alphabet="ab\n\n\r", max_size=60).map(lambda t: t.replace("\r", "\r\n").encode()),
    edges=st.lists(st.integers(0, 90), max_size=6),
    block_bytes_max=st.integers(1, 40),
    longest=st.integers(1, 12),
)
def test_records_are_independent_of_chunks_and_blocks(text, edges, block_bytes_max, longest):
    bounds = [0, *sorted(e for e in edges if e <= len(text)), len(text)]
    chunks = [text[a:b] for a, b in pairwise(bounds)]
    blocks = cut_records(chunks, record_bytes_max=longest, block_bytes_max=block_bytes_max)
    assert entries(blocks) == reference_entries(text, longest)
    assert all(b.ends[-1] - b.starts[0] <= max(block_bytes_max, longest + 1) for b in blocks if len(b))


def test_long_line_is_skipped_without_being_held():
    cutter = RecordCutter(NewlineScanner(), FIRST, record_bytes_max=100, block_bytes_max=1000)
    blocks = []
    for _ in range(1000):
        blocks += list(cutter.feed(b"x" * 64))
        assert cutter._held_bytes <= 100
    blocks += [*cutter.feed(b"\nshort\n"), *cutter.finish()]
    assert entries(blocks) == [(0, 1, 0, "longer than record_bytes_max=100"), (1, 2, 64_001, b"short")]
    assert blocks[0].failures[0].raw == b"x" * 100


def test_chunks_may_be_views_that_are_overwritten_later():
    buffer = bytearray(8)

    def chunks():
        for part in (b"one\ntwo", b"2\nthree\n"):
            buffer[: len(part)] = part
            yield memoryview(buffer)[: len(part)]

    assert [e[3] for e in entries(cut_records(chunks()))] == [b"one", b"two2", b"three"]


def test_byte_order_mark_is_dropped_and_counted():
    assert entries(cut_records([b"\xef\xbb", b"\xbfa\nb\n"])) == [(0, 1, 3, b"a"), (1, 2, 5, b"b")]


@for_each(
    ("text", "why"),
    [
        (
            b"\xff\xfea\0",
            "not any text: it starts with the byte order mark of UTF-16; read it with --encoding utf-16",
        ),
        (b"ab\0c\n", "not any text: NUL byte at offset 2; use --members"),
    ],
)
def test_binary_input_is_one_failure_and_is_read_to_its_end(text, why):
    left = iter([text, b"more\n", b"more\n"])
    (block,) = cut_records(left)
    (failure,) = block.failures
    assert failure.kind is FailureKind.OBJECT
    assert failure.why.startswith(why)
    assert failure.raw.startswith(text[:4])
    assert list(left) == []


def test_nul_after_the_probe_is_data():
    assert len(entries(cut_records([b"a\n" * PROBE_BYTES, b"\0\n"]))) == PROBE_BYTES + 1


@for_each("at", [0, 1])
def test_whole_records_precede_the_error_of_the_chunks(at):
    def chunks():
        yield from [b"one\ntw", b"x" * PROBE_BYTES + b"\nthree\nfo"][: at + 1]
        raise TruncatedError("ends early", byte=7)

    found = []
    with pytest.raises(TruncatedError):
        found.extend(iter(_collect(chunks(), found)))
    assert [e[0] for e in entries(found)] == list(range([1, 3][at]))


def _collect(chunks, found):
    for block in cut_text(
        chunks, FIRST, NewlineScanner(), "any", record_bytes_max=10_000, block_bytes_max=10_000
    ):
        found.append(block)
    return ()


def test_invalid_limits_are_rejected():
    with pytest.raises(ConfigError, match="must be at least 1, not 0 and 5"):
        RecordCutter(NewlineScanner(), FIRST, record_bytes_max=0, block_bytes_max=5)


def test_newline_offsets():
    assert newline_offsets(b"\na\n\n").tolist() == [0, 2, 3]


def test_block_respects_the_maximum_number_of_records():
    text = b"1\n" * (RECORDS_MAX + 10)
    blocks = list(CsvFormat().blocks([text], Position()))
    assert [len(b) for b in blocks] == [RECORDS_MAX, 10]
    assert [b.first.record for b in blocks] == [0, RECORDS_MAX]
    assert b"".join(b.record(i) + b"\n" for b in blocks for i in range(len(b))) == text
