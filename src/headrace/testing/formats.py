"""What every format must do, as checks that any format can be put through.

Each check takes a `FormatSample`, a format with bytes that are known, and raises AssertionError saying which promise of
`headrace.formats.contract` broke::

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
from headrace.formats.contract import BLOCK_BYTES_MAX, Buffer, Decoded, Decoder, Format
from headrace.testing.expect import equal, shown, true

_FIRST = Position("memory://bucket/sample", "member", member_byte=1536)
_ROUNDS = 12
_SINGLE_BYTES_MAX = 1 << 15
_CHUNK_BYTES = 1000
_PROBE_BYTES = 1 << 13
"""How much of its start a format may hold to see what it is, beside a block and an unfinished record."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatSample:
    """A format with bytes of which all is known.

    Args:
        make: Gives the format, new each time.
        data: One object's or member's bytes. More than a block, and more than 8 KiB, makes the checks of bounds bite.
        entries: How many records and failures these are, together.
        failures: How many of them are failures.
        slices: Whether records are slices of the data, and lines and bytes of positions are counted: text, and frames.
        separators: Of text, the bytes that may stand between records and do not end one.
        header_bytes: Of binary records in frames, how long the header before each is: positions are those of the
            headers, and there are no lines. None is text.
        first: Where the data stands. A whole archive's members have positions of their own in the same object.
        block_bytes_max: The most that a block holds, unless it is one record.
        decoder: Gives a decoder for the blocks, new each time; without one decoding is not checked.
        resume: Reads the data (first argument) from the entry at a position (second), where the format promises that.
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
        """What a new format makes of these chunks."""
        return self.make().blocks(chunks, self.first)


FormatCheck = Callable[[FormatSample], None]


def check_format(sample: FormatSample) -> None:
    """Put a format through every check."""
    for check in FORMAT_CHECKS:
        check(sample)


def check_entries(sample: FormatSample) -> None:
    """All records and failures come, once each, numbered without a gap, in blocks that are none of them empty."""
    entries = _entries(sample.blocks([sample.data]))
    equal(len(entries), sample.entries, "the number of records and failures")
    equal(sum(e.failure is not None for e in entries), sample.failures, "the number of failures")
    before = None
    for entry in entries:
        _follows(before, entry.position, sample.first)
        before = entry.position


def check_chunk_edges(sample: FormatSample) -> None:
    """The same comes however the bytes are cut, also from views of a buffer that is used again."""
    data = sample.data
    expected = _entries(sample.blocks([data]))
    for size in (1, 7, 511, 512, 513, 4096, 1 << 16):
        edges = range(size, len(data), size)
        if size > 1 or len(data) <= _SINGLE_BYTES_MAX:
            _same(_entries(sample.blocks(_reused(data, edges))), expected, f"chunks of {size} bytes")
    # As bytes, which a format may keep without a copy.
    _same(_entries(sample.blocks(_cut(data, range(97, len(data), 97)))), expected, "chunks that are bytes")
    rng = random.Random(len(data))  # noqa: S311 - where to cut is no secret
    for _ in range(_ROUNDS):
        # The same edge twice is an empty chunk.
        edges = sorted(rng.choices(range(len(data) + 1), k=rng.randint(1, 9)))
        _same(_entries(sample.blocks(_reused(data, edges))), expected, f"chunks cut at {edges}")


def check_slices(sample: FormatSample) -> None:
    """Every record is the source's bytes at its position, and its line is counted right; of text, no byte is lost."""
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
            ended = entry.raw[-1:] in tuple(
                sample.separators[i : i + 1] for i in range(len(sample.separators))
            )
            true(entry.failure is not None or not ended, f"{entry.position} holds what ends it")
        if stop is not None:
            true(
                start >= stop + (header or 0),
                f"{entry.position} begins before byte {begin + stop}, where the last record ends",
            )
            _lost_nothing(sample, stop, start)
        # How long a failure's record was, nobody says.
        stop = start + len(entry.raw) if entry.failure is None else None
    if stop is not None:
        _lost_nothing(sample, stop, len(data))


def _lost_nothing(sample: FormatSample, start: int, stop: int) -> None:
    gap = sample.data[start:stop]
    lost = gap.strip(sample.separators) if sample.header_bytes is None else b""
    true(not lost, f"no record holds the bytes {shown(gap)} from {start} on")


def check_blocks(sample: FormatSample) -> None:
    """Blocks are laid out as promised: offsets within the text, ascending, columns with a row each, and bounded."""
    for chunks in ([sample.data], _cut(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES))):
        for block in sample.blocks(chunks):
            starts, ends = block.starts, block.ends
            true(block.records > 0, f"the block at {block.first} is empty")
            equal((starts.dtype, ends.dtype, len(ends)), (np.int64, np.int64, len(starts)), "offset arrays")
            edges = np.stack([starts, ends], axis=1).ravel() if sample.slices else np.empty(0, np.int64)
            true(
                bool((np.diff(edges, prepend=0) >= 0).all()), f"offsets go back in the block at {block.first}"
            )
            true(not len(edges) or int(edges[-1]) <= len(block.data), "an offset behind the block's text")
            held = int(ends[-1] - starts[0]) if len(block) > 1 else 0
            true(held <= sample.block_bytes_max, f"the block at {block.first} holds {held} bytes")
            if sample.slices and len(block):
                equal(block.header_bytes, sample.header_bytes, f"the length of headers at {block.first}")
            for name, column in block.columns.items():
                equal(len(column), len(block), f"rows of column {name!r} in the block at {block.first}")


def check_nothing_is_held_back(sample: FormatSample) -> None:
    """Of text and frames: records come as soon as their bytes do; held are a block and an unfinished record at most."""
    if not sample.slices:
        return
    fed, reached, longest, worst = 0, 0, 0, 0

    def chunks() -> Iterator[bytes]:
        nonlocal fed, worst
        for chunk in _cut(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES)):
            worst = max(worst, fed - reached)
            fed += len(chunk)
            yield chunk

    for block in sample.blocks(chunks()):
        for entry in _entries([block]):
            start = entry.position.byte - sample.first.byte
            longest = max(longest, start - reached, len(entry.raw))
            reached = start + len(entry.raw)
    bound = sample.block_bytes_max + longest + _PROBE_BYTES
    true(worst <= bound, f"{worst} bytes were held, more than a block and the longest record ({bound})")


def check_damage(sample: FormatSample) -> None:
    """When the chunks raise CorruptError, all that was whole before comes first, and then the error."""
    whole = _entries(sample.blocks([sample.data]))
    starts = [e.position.byte - sample.first.byte for e in whole]
    size = len(sample.data)
    for at in sorted({0, 1, size // 3, size // 2, size - 1, size, *starts[1:4]}):
        came: list[_Entry] = []
        error = _taken(sample.blocks(_broken(sample.data[:at])), came)
        true(
            isinstance(error, CorruptError), f"chunks that break at byte {at} gave {error!r}, no CorruptError"
        )
        if not sample.slices or sample.failures:
            continue
        complete = sum(start <= at for start in starts[1:])
        true(len(came) >= complete, f"{len(came)} records came of {complete} before the damage at byte {at}")
        _same(came, whole[: len(came)], f"records before the damage at byte {at}")


def check_source_is_read_to_its_end(sample: FormatSample) -> None:
    """Damage behind the last record, such as a wrong checksum, is noticed by whoever makes the chunks."""
    came: list[_Entry] = []
    error = _taken(sample.blocks(_broken(sample.data)), came)
    true(error is not None, "the chunks were not asked for their end")


def check_closing(sample: FormatSample) -> None:
    """A reader that stops early lets the chunks go."""
    closed: list[bool] = []

    def chunks() -> Iterator[bytes]:
        try:
            yield from _cut(sample.data, range(_CHUNK_BYTES, len(sample.data), _CHUNK_BYTES))
        finally:
            closed.append(True)

    blocks = sample.blocks(chunks())
    next(iter(blocks), None)
    close = getattr(blocks, "close", None)
    true(close is not None, "blocks cannot be closed: give a generator")
    if close is not None:
        close()
    del blocks
    if not closed:
        gc.collect()
    true(bool(closed), "closing the blocks did not let the chunks go")


def check_repeating(sample: FormatSample) -> None:
    """One format reads many members, one after the other or at once: nothing of one shows in another."""
    expected = _entries(sample.blocks([sample.data]))
    format_ = sample.make()
    begun = format_.blocks(_cut(sample.data, range(97, len(sample.data), 97)), sample.first)
    first = next(iter(begun), None)
    _same(_entries(format_.blocks([sample.data], sample.first)), expected, "a second member")
    rest = [] if first is None else [first, *begun]
    _same(_entries(rest), expected, "a member that another was read between")


def check_resuming(sample: FormatSample) -> None:
    """Where it is promised: reading on from any entry's position gives exactly the rest."""
    if sample.resume is None:
        return
    entries = _entries(sample.blocks([sample.data]))
    step = max(1, len(entries) // 50)
    for index in range(0, len(entries), step):
        at = entries[index].position
        _same(_entries(sample.resume(sample.data, at)), entries[index:], f"reading on from {at}")


def check_decoding(sample: FormatSample) -> None:
    """The decoder gives each record a row or a failure, in order, the same each time."""
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
            equal(failure.position, block.position(index), "where a record failed")
            true(
                failure.kind in (FailureKind.DECODE, FailureKind.FORMAT),
                f"a {failure.kind} failure of decoding",
            )
        true(
            _plain(decoder.decode(block)) == _plain(decoded),
            f"decoding {block.first} again gives something else",
        )


FORMAT_CHECKS: tuple[FormatCheck, ...] = (
    check_entries,
    check_chunk_edges,
    check_slices,
    check_blocks,
    check_nothing_is_held_back,
    check_damage,
    check_source_is_read_to_its_end,
    check_closing,
    check_repeating,
    check_resuming,
    check_decoding,
)


@dataclass(frozen=True, slots=True)
class _Entry:
    """A record or failure, with all that a reader sees of it."""

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


def _taken(blocks: Iterator[Block], came: list[_Entry]) -> Exception | None:
    """Take all blocks into `came`; what ended them early."""
    try:
        for block in blocks:
            came.extend(_entries([block]))
    except Exception as error:  # noqa: BLE001 - it is looked at by who asks
        return error
    return None


def _follows(before: Position | None, here: Position, first: Position) -> None:
    """A position must be the next of its member, or the first of a later one."""
    equal(here.object, first.object, "the object of a position")
    if before is None:
        equal(
            (here.record, here.member_byte), (first.record, first.member_byte), "the first position's record"
        )
    elif here.member_byte > before.member_byte:
        equal(here.record, 0, f"the first record of member {here.member!r}")
    else:
        equal(
            (here.member, here.member_byte), (before.member, before.member_byte), "the member of a position"
        )
        equal(here.record, before.record + 1, f"the record behind {before}")


def _cut(data: bytes, edges: Iterable[int]) -> Iterator[bytes]:
    for start, stop in pairwise([0, *edges, len(data)]):
        yield data[start:stop]


def _reused(data: bytes, edges: Iterable[int]) -> Iterator[memoryview]:
    """Chunks as views of one buffer, which is overwritten before the next."""
    buffer = bytearray(len(data))
    for chunk in _cut(data, edges):
        buffer[: len(chunk)] = chunk
        yield memoryview(buffer)[: len(chunk)]
        buffer[: len(chunk)] = b"\xaa" * len(chunk)


def _broken(data: bytes) -> Iterator[bytes]:
    yield from _cut(data, range(_CHUNK_BYTES, len(data), _CHUNK_BYTES))
    raise CorruptError("broken by the check", byte=len(data))


def _plain(decoded: Decoded) -> tuple[Any, ...]:
    tensors = {name: (data.dtype, data.tolist()) for name, data in decoded.tensors.items()}
    return repr(tensors), None if decoded.rows is None else decoded.rows.tolist(), decoded.failures


def _same(have: list[_Entry], want: list[_Entry], what: str) -> None:
    for index, (one, other) in enumerate(zip(have, want, strict=False)):
        equal(one, other, f"{what}: entry {index}")
    equal(len(have), len(want), f"{what}: the number of records")
