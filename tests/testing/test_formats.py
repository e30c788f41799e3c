"""Each broken format fails the check of the guarantee that it breaks."""

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from cases import for_each
from formats.framed_files import recordio
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import CorruptError
from headrace.formats.contract import DecodedBlock
from headrace.formats.csv_decode import CsvMatrixDecoder
from headrace.formats.frames import RecordIOFormat
from headrace.formats.line import JsonLinesFormat
from headrace.testing import FORMAT_CHECKS, FormatSample, check_format

CHECKS = {check.__name__: check for check in FORMAT_CHECKS}
DATA = b"".join(b"%d.5,%0100d\n" % (i, i * 7) for i in range(120))
BLOCK = 2000


class Lines(JsonLinesFormat):
    """A correct format; broken ones derive from it."""

    def blocks(self, chunks, first):
        yield from JsonLinesFormat(block_bytes_max=BLOCK).blocks(chunks, first)


def sample(make=Lines, **options):
    return FormatSample(
        **{
            "make": make,
            "data": DATA,
            "entries": 120,
            "block_bytes_max": BLOCK,
            "decoder": lambda: CsvMatrixDecoder("x", width=2),
            "resume": lambda data, at: make().blocks([data[at.byte :]], at),
            **options,
        }
    )


def failing_checks(of):
    """Return the names of the checks that fail."""
    return {check.__name__ for check in FORMAT_CHECKS if _fails(check, of)}


def _fails(check, of):
    try:
        check(of)
    except AssertionError:
        return True
    return False


def test_correct_format_passes():
    check_format(sample())
    assert failing_checks(sample()) == set()


@for_each("count", [119, 121])
def test_wrong_number_of_entries_fails(count):
    assert failing_checks(sample(entries=count)) == {"check_entries"}
    assert failing_checks(sample(failures=1)) >= {"check_entries"}


def changed(change):
    """Return a format whose blocks `change` replaces, given their number, with any number of blocks."""

    class Changed(Lines):
        def blocks(self, chunks, first):
            for number, block in enumerate(super().blocks(chunks, first)):
                yield from change(number, block)

    return Changed


def without_record(number, block):
    yield replace(block, starts=block.starts[:-1], ends=block.ends[:-1]) if number == 2 else block


def with_record_twice(number, block):
    yield block
    if number == 2:
        yield Block(block.position(len(block) - 1), block.data, block.starts[-1:], block.ends[-1:])


def renumbered_twice(number, block):
    """Repeat a record with continuous numbers, so that only the bytes differ."""
    ahead = replace(block.first, record=block.first.record + (number > 2))
    yield replace(block, first=ahead)
    if number == 2:
        last = replace(block.position(len(block) - 1), record=block.first.record + len(block))
        yield Block(last, block.data, block.starts[-1:], block.ends[-1:])


@for_each(
    ("defect", "change", "check"),
    [
        ("a record dropped", without_record, "check_entries"),
        ("a record doubled", with_record_twice, "check_entries"),
        ("a record doubled and renumbered", renumbered_twice, "check_slices"),
        ("a block dropped", lambda n, b: [b] if n else [], "check_entries"),
        ("empty blocks", lambda n, b: [b, Block(b.first)], "check_blocks"),
        ("starts off by one", lambda n, b: [replace(b, starts=b.starts + 1)], "check_slices"),
        ("ends off by one", lambda n, b: [replace(b, ends=b.ends - 1)], "check_slices"),
        ("newlines in records", lambda n, b: [replace(b, ends=b.ends + 1)], "check_slices"),
        (
            "offsets of another type",
            lambda n, b: [replace(b, starts=b.starts.astype(np.int32))],
            "check_blocks",
        ),
        (
            "bytes wrong",
            lambda n, b: [replace(b, first=replace(b.first, byte=b.first.byte + n))],
            "check_slices",
        ),
        (
            "lines wrong",
            lambda n, b: [replace(b, first=replace(b.first, line=b.first.line + n))],
            "check_slices",
        ),
        (
            "another member",
            lambda n, b: [replace(b, first=replace(b.first, member="other"))] if n else [b],
            "check_entries",
        ),
        (
            "another object",
            lambda n, b: [replace(b, first=replace(b.first, object="other"))],
            "check_entries",
        ),
        (
            "numbers from one",
            lambda n, b: [replace(b, first=replace(b.first, record=b.first.record + 1))],
            "check_entries",
        ),
        ("columns too long", lambda n, b: [replace(b, columns={"c": np.zeros(len(b) + 1)})], "check_blocks"),
    ],
)
def test_broken_blocks_fail(defect, change, check):
    assert _fails(CHECKS[check], sample(changed(change)))


class ChunkRecords(Lines):
    """Ends a record at the end of each chunk."""

    def blocks(self, chunks, first):
        record = byte = 0
        for chunk in chunks:
            for block in super().blocks([bytes(chunk)], first):
                at = replace(first, record=first.record + record, byte=first.byte + byte)
                yield replace(block, first=replace(at, line=first.line + DATA.count(b"\n", 0, byte)))
                record += block.records
            byte += len(chunk)


class KeepsViews(Lines):
    """Keeps chunks without copying them."""

    def blocks(self, chunks, first):
        held = list(chunks)
        yield from super().blocks(held, first)


class WholeAtOnce(Lines):
    """Returns one block with all records, at the end."""

    def blocks(self, chunks, first):
        yield from JsonLinesFormat().blocks([b"".join(map(bytes, chunks))], first)


class HoldsBack(Lines):
    """Returns blocks of the right size, but all of them at the end."""

    def blocks(self, chunks, first):
        yield from super().blocks([b"".join(map(bytes, chunks))], first)


class SwallowsErrors(Lines):
    def blocks(self, chunks, first):
        def quiet():
            try:
                yield from chunks
            except CorruptError:
                return

        yield from super().blocks(quiet(), first)


class RewordsErrors(Lines):
    def blocks(self, chunks, first):
        try:
            yield from super().blocks(chunks, first)
        except CorruptError as error:
            raise ValueError("bad data") from error


class StopsEarly(Lines):
    """Stops reading after the last record."""

    def blocks(self, chunks, first):
        seen = 0
        for block in super().blocks(chunks, first):
            yield block
            seen += len(block)
            if seen == 120:
                return


class NeverCloses(Lines):
    kept: ClassVar[list] = []

    def blocks(self, chunks, first):
        chunks = iter(chunks)
        self.kept.append(chunks)
        yield from super().blocks(chunks, first)


class Unclosable(Lines):
    def blocks(self, chunks, first):
        return itertools.chain(super().blocks(chunks, first))


class Remembers(Lines):
    """Numbers records over all members."""

    def __init__(self):
        object.__setattr__(self, "count", 0)

    def blocks(self, chunks, first):
        for block in super().blocks(chunks, first):
            yield replace(block, first=replace(block.first, record=first.record + self.count))
            object.__setattr__(self, "count", self.count + len(block))


@for_each(
    ("make", "check"),
    [
        (ChunkRecords, "check_chunk_edges"),
        (KeepsViews, "check_chunk_edges"),
        (WholeAtOnce, "check_blocks"),
        (HoldsBack, "check_bounded_buffering"),
        (SwallowsErrors, "check_corruption"),
        (RewordsErrors, "check_corruption"),
        (StopsEarly, "check_reads_source_to_end"),
        (NeverCloses, "check_closing"),
        (Unclosable, "check_closing"),
        (Remembers, "check_format_reuse"),
    ],
)
def test_broken_format_fails_its_check(make, check):
    assert _fails(CHECKS[check], sample(make))
    NeverCloses.kept.clear()


def test_resuming_off_by_one_fails():
    def one_more(data, at):
        return Lines().blocks([data[at.byte :]], replace(at, record=at.record + 1))

    assert failing_checks(sample(resume=one_more)) == {"check_resuming"}


class ChangedDecoder:
    """A decoder whose result `change` replaces."""

    def __init__(self, change):
        self._change = change
        self._inner = CsvMatrixDecoder("x", width=2)
        self.calls = 0

    def decode(self, block):
        self.calls += 1
        return self._change(self, block, self._inner.decode(block))


def failed(block, index):
    return (block.failure(index, FailureKind.DECODE, "no"),)


@pytest.mark.parametrize(
    "change",
    [
        lambda self, block, d: DecodedBlock({"x": d.tensors["x"][:-1]}),
        lambda self, block, d: replace(d, failures=failed(block, 0)),
        lambda self, block, d: DecodedBlock({"x": d.tensors["x"][1:]}, np.arange(1, len(block))),
        lambda self, block, d: DecodedBlock(d.tensors, np.arange(len(block))[::-1]),
        lambda self, block, d: DecodedBlock({"x": d.tensors["x"] * self.calls}),
        lambda self, block, d: DecodedBlock(
            {"x": d.tensors["x"][1:]},
            np.arange(1, len(block)),
            (Failure(block.first, FailureKind.MODEL, "no"),),
        ),
        lambda self, block, d: DecodedBlock(
            {"x": d.tensors["x"][1:]},
            np.arange(1, len(block)),
            (Failure(replace(block.first, byte=9999999), FailureKind.DECODE, "no"),),
        ),
    ],
    ids=[
        "a row too few",
        "a row and a failure",
        "neither row nor failure",
        "backwards",
        "another result each time",
        "a failure of another kind",
        "a failure elsewhere",
    ],
)
def test_broken_decoder_fails(change):
    assert failing_checks(sample(decoder=lambda: ChangedDecoder(change))) == {"check_decoding"}


def test_decoder_may_refuse_records():
    def change(self, block, d):
        return DecodedBlock({"x": d.tensors["x"][1:]}, np.arange(1, len(block)), failed(block, 0))

    assert failing_checks(sample(decoder=lambda: ChangedDecoder(change))) == set()


def test_members_need_ascending_offsets():
    """Numbers start again in each member."""

    def members(*offsets):
        class Members(Lines):
            def blocks(self, chunks, first):
                text = b"".join(map(bytes, chunks))
                for offset in offsets:
                    at = Position(first.object, f"m{offset}", member_byte=offset)
                    yield from JsonLinesFormat().blocks([text[:105]], at)

        return FormatSample(
            make=Members, data=DATA[:105], entries=len(offsets), slices=False, first=Position("o", "m0")
        )

    assert "check_entries" not in failing_checks(members(0, 512, 2048))
    assert "check_entries" in failing_checks(members(0, 512, 512))
    assert "check_entries" in failing_checks(members(0, 512, 256))


RECORDS = [b"%d\n" % i * 9 for i in range(200)]


def framed(make, **options):
    return FormatSample(
        **{
            "make": make,
            "data": recordio(RECORDS),
            "entries": 200,
            "block_bytes_max": BLOCK,
            "header_bytes": 8,
            "resume": lambda data, at: make().blocks([data[at.byte :]], at),
            **options,
        }
    )


class Frames:
    """A correct format of frames; broken ones change its blocks."""

    change: ClassVar[dict] = {}

    def blocks(self, chunks, first):
        for block in RecordIOFormat(block_bytes_max=BLOCK).blocks(chunks, first):
            yield replace(block, **self.change)


def test_correct_frames_pass():
    assert failing_checks(framed(Frames)) == set()


def test_frames_with_line_numbers_fail():
    class Counting(Frames):
        change: ClassVar[dict] = {"header_bytes": None}

    assert failing_checks(framed(Counting)) >= {"check_slices", "check_blocks"}


def test_frames_with_shifted_positions_fail():
    class Shifted(Frames):
        def blocks(self, chunks, first):
            for block in super().blocks(chunks, first):
                yield replace(block, first=replace(block.first, byte=block.first.byte + 8))

    assert failing_checks(framed(Shifted, resume=None)) == {"check_slices"}


def test_headers_of_another_length_fail():
    assert failing_checks(framed(Frames, header_bytes=4)) >= {"check_slices", "check_blocks"}
