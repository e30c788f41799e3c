"""The suite for formats goes red for formats that break a promise, each in its own way."""

import itertools
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest

from formats.framed_files import recordio
from headrace.core.block import Block, Failure, FailureKind, Position
from headrace.core.errors import CorruptError
from headrace.formats.contract import Decoded
from headrace.formats.csv_decode import CsvMatrixDecoder
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.recordio import RecordIOFormat
from headrace.testing import FORMAT_CHECKS, FormatSample, check_format

DATA = b"".join(b"%d.5,%0100d\n" % (i, i * 7) for i in range(120))
BLOCK = 2000


class Lines(JsonLinesFormat):
    """A format that is right; what is broken derives from it."""

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
    """Names of the checks that go red."""
    return {check.__name__ for check in FORMAT_CHECKS if _is_red(check, of)}


def _is_red(check, of):
    try:
        check(of)
    except AssertionError:
        return True
    return False


def test_a_right_format_is_green():
    check_format(sample())
    assert failing_checks(sample()) == set()


@pytest.mark.parametrize("count", [119, 121])
def test_the_number_of_entries_is_held_against_what_is_known(count):
    assert failing_checks(sample(entries=count)) == {"check_entries"}
    assert failing_checks(sample(failures=1)) >= {"check_entries"}


def changed(change):
    """A format whose blocks are changed by a function of their number and themselves, to several or none."""

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
    """A record twice, with numbers that go on: only the bytes tell."""
    ahead = replace(block.first, record=block.first.record + (number > 2))
    yield replace(block, first=ahead)
    if number == 2:
        last = replace(block.position(len(block) - 1), record=block.first.record + len(block))
        yield Block(last, block.data, block.starts[-1:], block.ends[-1:])


@pytest.mark.parametrize(
    ("change", "red"),
    [
        (without_record, "check_entries"),
        (with_record_twice, "check_entries"),
        (renumbered_twice, "check_slices"),
        (lambda n, b: [b] if n else [], "check_entries"),
        (lambda n, b: [b, Block(b.first)], "check_blocks"),
        (lambda n, b: [replace(b, starts=b.starts + 1)], "check_slices"),
        (lambda n, b: [replace(b, ends=b.ends - 1)], "check_slices"),
        (lambda n, b: [replace(b, ends=b.ends + 1)], "check_slices"),
        (lambda n, b: [replace(b, starts=b.starts.astype(np.int32))], "check_blocks"),
        (lambda n, b: [replace(b, first=replace(b.first, byte=b.first.byte + n))], "check_slices"),
        (lambda n, b: [replace(b, first=replace(b.first, line=b.first.line + n))], "check_slices"),
        (lambda n, b: [replace(b, first=replace(b.first, member="other"))] if n else [b], "check_entries"),
        (lambda n, b: [replace(b, first=replace(b.first, object="other"))], "check_entries"),
        (lambda n, b: [replace(b, first=replace(b.first, record=b.first.record + 1))], "check_entries"),
        (lambda n, b: [replace(b, columns={"c": np.zeros(len(b) + 1)})], "check_blocks"),
    ],
    ids=[
        "a record dropped",
        "a record doubled",
        "a record doubled and renumbered",
        "a block dropped",
        "empty blocks",
        "starts off by one",
        "ends off by one",
        "newlines in records",
        "offsets of another type",
        "bytes wrong",
        "lines wrong",
        "another member",
        "another object",
        "numbers from one",
        "columns too long",
    ],
)
def test_blocks_that_are_wrong(change, red):
    assert red in failing_checks(sample(changed(change)))


class ChunkRecords(Lines):
    """Ends a record where a chunk ends."""

    def blocks(self, chunks, first):
        record = byte = 0
        for chunk in chunks:
            for block in super().blocks([bytes(chunk)], first):
                at = replace(first, record=first.record + record, byte=first.byte + byte)
                yield replace(block, first=replace(at, line=first.line + DATA.count(b"\n", 0, byte)))
                record += block.records
            byte += len(chunk)


class KeepsViews(Lines):
    """Holds chunks without copying them."""

    def blocks(self, chunks, first):
        held = list(chunks)
        yield from super().blocks(held, first)


class WholeAtOnce(Lines):
    """One block of everything, at the end."""

    def blocks(self, chunks, first):
        yield from JsonLinesFormat().blocks([b"".join(map(bytes, chunks))], first)


class HoldsBack(Lines):
    """Blocks of the right size, but all of them at the end."""

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
    """Does not ask whether there is more once it has seen the records it knows of."""

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
    """Counts its records over all members."""

    def __init__(self):
        object.__setattr__(self, "count", 0)

    def blocks(self, chunks, first):
        for block in super().blocks(chunks, first):
            yield replace(block, first=replace(block.first, record=first.record + self.count))
            object.__setattr__(self, "count", self.count + len(block))


@pytest.mark.parametrize(
    ("make", "red"),
    [
        (ChunkRecords, "check_chunk_edges"),
        (KeepsViews, "check_chunk_edges"),
        (WholeAtOnce, "check_blocks"),
        (HoldsBack, "check_nothing_is_held_back"),
        (SwallowsErrors, "check_damage"),
        (RewordsErrors, "check_damage"),
        (StopsEarly, "check_source_is_read_to_its_end"),
        (NeverCloses, "check_closing"),
        (Unclosable, "check_closing"),
        (Remembers, "check_repeating"),
    ],
)
def test_formats_that_are_wrong(make, red):
    assert red in failing_checks(sample(make))
    NeverCloses.kept.clear()


def test_resuming_that_is_off_by_one():
    def one_more(data, at):
        return Lines().blocks([data[at.byte :]], replace(at, record=at.record + 1))

    assert failing_checks(sample(resume=one_more)) == {"check_resuming"}


class Decodes:
    """A decoder whose result is changed."""

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
        lambda self, block, d: Decoded({"x": d.tensors["x"][:-1]}),
        lambda self, block, d: replace(d, failures=failed(block, 0)),
        lambda self, block, d: Decoded({"x": d.tensors["x"][1:]}, np.arange(1, len(block))),
        lambda self, block, d: Decoded(d.tensors, np.arange(len(block))[::-1]),
        lambda self, block, d: Decoded({"x": d.tensors["x"] * self.calls}),
        lambda self, block, d: Decoded(
            {"x": d.tensors["x"][1:]},
            np.arange(1, len(block)),
            (Failure(block.first, FailureKind.MODEL, "no"),),
        ),
        lambda self, block, d: Decoded(
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
def test_decoders_that_are_wrong(change):
    assert failing_checks(sample(decoder=lambda: Decodes(change))) == {"check_decoding"}


def test_a_decoder_may_refuse_records():
    def change(self, block, d):
        return Decoded({"x": d.tensors["x"][1:]}, np.arange(1, len(block)), failed(block, 0))

    assert failing_checks(sample(decoder=lambda: Decodes(change))) == set()


def test_archives_may_have_many_members():
    """Numbers begin anew in each, at a later offset; going back is wrong."""

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
    """A format of frames that is right; what is broken changes its blocks."""

    change: ClassVar[dict] = {}

    def blocks(self, chunks, first):
        for block in RecordIOFormat(block_bytes_max=BLOCK).blocks(chunks, first):
            yield replace(block, **self.change)


def test_right_frames_are_green():
    assert failing_checks(framed(Frames)) == set()


def test_frames_whose_positions_count_lines_are_found():
    class Counting(Frames):
        change: ClassVar[dict] = {"header_bytes": None}

    assert failing_checks(framed(Counting)) >= {"check_slices", "check_blocks"}


def test_frames_whose_positions_are_not_those_of_headers_are_found():
    class Shifted(Frames):
        def blocks(self, chunks, first):
            for block in super().blocks(chunks, first):
                yield replace(block, first=replace(block.first, byte=block.first.byte + 8))

    assert failing_checks(framed(Shifted, resume=None)) == {"check_slices"}


def test_headers_of_another_length_are_found():
    assert failing_checks(framed(Frames, header_bytes=4)) >= {"check_slices", "check_blocks"}
