"""The conformance suite for formats.

Each check takes a `FormatSample`, a format with known bytes. It raises AssertionError with the
guarantee of `headrace.formats.contract` that is broken::

    SAMPLE = FormatSample(make=MyFormat, data=b"...", entries=7)

    @pytest.mark.parametrize("check", FORMAT_CHECKS, ids=lambda check: check.__name__)
    def test_my_format(check):
        check(SAMPLE)
"""

import gc
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import CorruptError
from headrace.formats.contract import BLOCK_BYTES_MAX, Buffer, DecodedBlock, Decoder, Format
from headrace.testing.expect import equal, short_repr, true

_FIRST = Position("memory://bucket/sample", "member", member_byte=1536)
_ROUNDS = 12
_SINGLE_BYTES_MAX = 1 << 15
_CHUNK_BYTES = 1000
_PROBE_BYTES = 1 << 13
"""Bytes that a format may buffer to detect its variant, beside a block and an unfinished record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSample:
    """A format, known bytes, and the expected results.

    Args:
        make: Returns a new format.
        data: The bytes of one object or member. The checks of bounds need more than a block, and more
            than 8 KiB.
        entries: The number of records and failures together.
        failures: The number of failures among them.
        slices: Records are slices of the data, and positions count lines and bytes: text, and frames.
        separators: For text: the bytes that may stand between records and end none of them.
        header_bytes: For binary records in frames: the length of the header before each record.
            Positions are those of the headers, and there are no lines. None means text.
        first: The position of the data. The members of a whole archive have positions of their own in
            the same object.
        block_bytes_max: The size limit of a block with more than one record.
        decoder: Returns a new decoder of the blocks. Without it, decoding is not checked.
        resume: Reads the data (first argument) from the entry at a position (second), if the format
            guarantees resumption.
    """

    make: Callable[[], Format]
    data: bytes
    entries: int
    failures: int = 0
    slices: bool = True
    separators: bytes = b"\r\n"
    header_bytes: int | None = None
    first: Position = _FIRST
    block_bytes_max: int = BLOCK_BYTES_MAX
    decoder: Callable[[], Decoder] | None = None
    resume: Callable[[bytes, Position], Iterable[Block]] | None = None

    def blocks(self, chunks: Iterable[Buffer]) -> Iterator[Block]:
        """Return the blocks that a new format makes of these chunks."""
        return self.make().blocks(chunks, self.first)


FormatCheck = Callable[[FormatSample], None]


def check_format(sample: FormatSample) -> None:
    """Run every check."""
    for check in FORMAT_CHECKS:
        check(sample)


def check_entries(sample: FormatSample) -> None:
    """Check that all records and failures appear once and are numbered without gaps.

    No block is empty.
    """
    entries = _entries(sample.blocks([sample.data]))
    equal(len(entries), sample.entries, "the number of records and failures")
    equal(sum(e.failure is not None for e in entries), sample.failures, "the number of failures")
    previous = None
    for entry in entries:
        _require_next(previous, entry.position, sample.first)
        previous = entry.position


def check_chunk_edges(sample: FormatSample) -> None:
    """Check that the result does not depend on the cuts, even with views of a reused buffer."""
    data = sample.data
    expected = _entries(sample.blocks([data]))
    for size in (1, 7, 511, 512, 513, 4096, 1 << 16):
        edges = range(size, len(data), size)
        if size > 1 or len(data) <= _SINGLE_BYTES_MAX:
            _require_same(
                _entries(sample.blocks(_reused_chunks(data, edges))), expected, f"chunks of {size} bytes"
            )
    # Formats may keep chunks of bytes without a copy.
    _require_same(
        _entries(sample.blocks(_chunks(data, range(97, len(data), 97)))), expected, "chunks of type bytes"
    )
    rng = random.Random(len(data))  # noqa: S311 - reproducible cuts, no secret
    for _ in range(_ROUNDS):
        # A repeated edge makes an empty chunk.
        edges = sorted(rng.choices(range(len(data) + 1), k=rng.randint(1, 9)))
        _require_same(
            _entries(sample.blocks(_reused_chunks(data, edges))), expected, f"chunks cut at {edges}"
        )


def check_slices(sample: FormatSample) -> None:
    """Check that each record has the source's bytes at its position, and the right line.

    For text, no byte is lost.
    """
    if not sample.slices:
        return
    data, begin, stop = sample.data, sample.first.byte, None
    header = sample.header_bytes
    entries = _entries(sample.blocks([data]))
    for entry in entries:
        start = entry.position.byte - begin
        line = sample.first.line + (data.count(b"\n", 0, start) if header is None else 0)
        equal(entry.position.line, line, f"the line of {entry.position}")
        start += header or 0
        equal(entry.raw, data[start : start + len(entry.raw)], f"the bytes of {entry.position}")
        if header is None:
            is_separator = entry.raw[-1:] in tuple(
                sample.separators[i : i + 1] for i in range(len(sample.separators))
            )
            true(
                entry.failure is not None or not is_separator,
                f"{entry.position} contains the separator that ends it",
            )
        if stop is not None:
            true(
                start >= stop + (header or 0),
                f"{entry.position} begins before byte {begin + stop}, the end of the last record",
            )
            _require_no_lost_bytes(sample, stop, start)
        # The length of a failed record is unknown.
        stop = start + len(entry.raw) if entry.failure is None else None
    if stop is not None:
        _require_no_lost_bytes(sample, stop, len(data))


def _require_no_lost_bytes(sample: FormatSample, start: int, stop: int) -> None:
    gap = sample.data[start:stop]
    lost = gap.strip(sample.separators) if sample.header_bytes is None else b""
    true(not lost, f"no record contains the bytes {short_repr(gap)} from byte {start} on")


def check_blocks(sample: FormatSample) -> None:
    """Check the layout of blocks.

    Offsets ascend within the text, each column has one row for each record, and the size is
    bounded.
    """
    for chunks in ([sample.data], _chunks(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES))):
        for block in sample.blocks(chunks):
            starts, ends = block.starts, block.ends
            true(block.records > 0, f"the block at {block.first} is empty")
            equal((starts.dtype, ends.dtype, len(ends)), (np.int64, np.int64, len(starts)), "offset arrays")
            edges = np.stack([starts, ends], axis=1).ravel() if sample.slices else np.empty(0, np.int64)
            true(
                bool((np.diff(edges, prepend=0) >= 0).all()), f"offsets descend in the block at {block.first}"
            )
            true(
                not len(edges) or int(edges[-1]) <= len(block.data),
                f"an offset is after the end of the text in the block at {block.first}",
            )
            held = int(ends[-1] - starts[0]) if len(block) > 1 else 0
            true(
                held <= sample.block_bytes_max,
                f"the block at {block.first} holds {held} bytes, limit {sample.block_bytes_max}",
            )
            if sample.slices and len(block):
                equal(block.header_bytes, sample.header_bytes, f"the length of headers at {block.first}")
            for name, column in block.columns.items():
                equal(len(column), len(block), f"rows of column {name!r} in the block at {block.first}")


def check_bounded_buffering(sample: FormatSample) -> None:
    """Check that records of text and frames are emitted as soon as their bytes arrive.

    A format may buffer one block and one unfinished record.
    """
    if not sample.slices:
        return
    sent, received, longest, buffered_max = 0, 0, 0, 0

    def chunks() -> Iterator[bytes]:
        nonlocal sent, buffered_max
        for chunk in _chunks(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES)):
            buffered_max = max(buffered_max, sent - received)
            sent += len(chunk)
            yield chunk

    for block in sample.blocks(chunks()):
        for entry in _entries([block]):
            start = entry.position.byte - sample.first.byte
            longest = max(longest, start - received, len(entry.raw))
            received = start + len(entry.raw)
    limit = sample.block_bytes_max + longest + _PROBE_BYTES
    true(
        buffered_max <= limit,
        f"{buffered_max} bytes were buffered, limit {limit} (a block and the longest record)",
    )


def check_corruption(sample: FormatSample) -> None:
    """Check that complete records precede the error if the chunks raise CorruptError."""
    complete_entries = _entries(sample.blocks([sample.data]))
    starts = [e.position.byte - sample.first.byte for e in complete_entries]
    size = len(sample.data)
    for at in sorted({0, 1, size // 3, size // 2, size - 1, size, *starts[1:4]}):
        entries: list[_Entry] = []
        error = _collect(sample.blocks(_corrupt_chunks(sample.data[:at])), entries)
        true(
            isinstance(error, CorruptError),
            f"chunks that break at byte {at} gave {error!r}, expected CorruptError",
        )
        if not sample.slices or sample.failures:
            continue
        complete = sum(start <= at for start in starts[1:])
        true(
            len(entries) >= complete,
            f"{len(entries)} records of {complete} came before the corruption at byte {at}",
        )
        _require_same(
            entries, complete_entries[: len(entries)], f"records before the corruption at byte {at}"
        )


def check_reads_source_to_end(sample: FormatSample) -> None:
    """Check that the chunks are read to their end after the last record.

    Their source can then report late corruption, such as a wrong checksum.
    """
    entries: list[_Entry] = []
    error = _collect(sample.blocks(_corrupt_chunks(sample.data)), entries)
    true(error is not None, "the chunks were not read to their end")


def check_closing(sample: FormatSample) -> None:
    """Check that a reader that stops early closes the chunks."""
    closed: list[bool] = []

    def chunks() -> Iterator[bytes]:
        try:
            yield from _chunks(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES))
        finally:
            closed.append(True)

    blocks = sample.blocks(chunks())
    next(iter(blocks), None)
    close = getattr(blocks, "close", None)
    true(close is not None, "blocks have no close method: return a generator")
    if close is not None:
        close()
    del blocks
    if not closed:
        gc.collect()
    true(bool(closed), "closing the blocks did not close the chunks")


def check_format_reuse(sample: FormatSample) -> None:
    """Check that one format reads several members, in turn or at once, without mixing them."""
    expected = _entries(sample.blocks([sample.data]))
    format_ = sample.make()
    interrupted = format_.blocks(_chunks(sample.data, range(97, len(sample.data), 97)), sample.first)
    first = next(iter(interrupted), None)
    _require_same(_entries(format_.blocks([sample.data], sample.first)), expected, "a second member")
    rest = [] if first is None else [first, *interrupted]
    _require_same(_entries(rest), expected, "a member interleaved with another")


def check_resuming(sample: FormatSample) -> None:
    """Check that reading from any entry's position returns exactly the rest, if guaranteed."""
    if sample.resume is None:
        return
    entries = _entries(sample.blocks([sample.data]))
    step = max(1, len(entries) // 50)
    for index in range(0, len(entries), step):
        at = entries[index].position
        _require_same(_entries(sample.resume(sample.data, at)), entries[index:], f"resuming at {at}")


def check_decoding(sample: FormatSample) -> None:
    """Check that the decoder returns a row or a failure for each record, in order and repeatably."""
    if sample.decoder is None:
        return
    decoder = sample.decoder()
    for block in sample.blocks([sample.data]):
        if not len(block):
            continue
        decoded = decoder.decode(block)
        rows = list(range(len(block))) if decoded.rows is None else decoded.rows.tolist()
        failed = [f.position.record - block.first.record for f in decoded.failures]
        equal(sorted([*rows, *failed]), list(range(len(block))), f"rows and failures at {block.first}")
        equal((rows, failed), (sorted(rows), sorted(failed)), f"the order of rows at {block.first}")
        for name, tensor in decoded.tensors.items():
            equal(len(tensor), len(rows), f"rows of {name!r} at {block.first}")
        for index, failure in zip(failed, decoded.failures, strict=True):
            equal(failure.position, block.position(index), f"the position of a failure at {block.first}")
            true(
                failure.kind in (FailureKind.DECODE, FailureKind.FORMAT),
                f"a decoder reported a {failure.kind} failure, expected DECODE or FORMAT",
            )
        true(
            _comparable(decoder.decode(block)) == _comparable(decoded),
            f"decoding {block.first} again gives another result",
        )


FORMAT_CHECKS: tuple[FormatCheck, ...] = (
    check_entries,
    check_chunk_edges,
    check_slices,
    check_blocks,
    check_bounded_buffering,
    check_corruption,
    check_reads_source_to_end,
    check_closing,
    check_format_reuse,
    check_resuming,
    check_decoding,
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record or failure with everything that a reader sees."""

    position: Position
    raw: bytes
    failure: tuple[FailureKind, str] | None = None
    columns: dict[str, Any] = field(default_factory=dict[str, Any])


def _entries(blocks: Iterable[Block]) -> list[_Entry]:
    found: list[_Entry] = []
    for block in blocks:
        for i in range(len(block)):
            columns = {n: (c.dtype.str, c.shape[1:], c[i].tobytes()) for n, c in block.columns.items()}
            found.append(_Entry(block.position(i), block.record(i), None, columns))
        found.extend(_Entry(f.position, f.raw, (f.kind, f.why)) for f in block.failures)
    return found


def _collect(blocks: Iterator[Block], entries: list[_Entry]) -> Exception | None:
    """Append all entries to `entries`. Return the error that ended the blocks early, or None."""
    try:
        for block in blocks:
            entries.extend(_entries([block]))
    except Exception as error:  # noqa: BLE001 - the checks examine the error
        return error
    return None


def _require_next(previous: Position | None, here: Position, first: Position) -> None:
    """Check that a position is the next of its member, or the first of a later member."""
    equal(here.object, first.object, "the object of a position")
    if previous is None:
        equal(
            (here.record, here.member_byte), (first.record, first.member_byte), "the first position's record"
        )
    elif here.member_byte > previous.member_byte:
        equal(here.record, 0, f"the first record of member {here.member!r}")
    else:
        equal(
            (here.member, here.member_byte),
            (previous.member, previous.member_byte),
            "the member of a position",
        )
        equal(here.record, previous.record + 1, f"the record after {previous}")


def _chunks(data: bytes, edges: Iterable[int]) -> Iterator[bytes]:
    for start, stop in pairwise([0, *edges, len(data)]):
        yield data[start:stop]


def _reused_chunks(data: bytes, edges: Iterable[int]) -> Iterator[memoryview]:
    """Yield chunks as views of one buffer, overwritten before the next."""
    buffer = bytearray(len(data))
    for chunk in _chunks(data, edges):
        buffer[: len(chunk)] = chunk
        yield memoryview(buffer)[: len(chunk)]
        buffer[: len(chunk)] = b"\xaa" * len(chunk)


def _corrupt_chunks(data: bytes) -> Iterator[bytes]:
    yield from _chunks(data, range(_CHUNK_BYTES, len(data), _CHUNK_BYTES))
    raise CorruptError("corrupted by the check", byte=len(data))


def _comparable(decoded: DecodedBlock) -> tuple[Any, ...]:
    tensors = {name: (data.dtype, data.tolist()) for name, data in decoded.tensors.items()}
    return repr(tensors), None if decoded.rows is None else decoded.rows.tolist(), decoded.failures


def _require_same(actual: list[_Entry], expected: list[_Entry], subject: str) -> None:
    for index, (left, right) in enumerate(zip(actual, expected, strict=False)):
        equal(left, right, f"{subject}: entry {index}")
    equal(len(actual), len(expected), f"{subject}: the number of records")
