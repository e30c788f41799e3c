"""Tests of CSV splitting: records equal to csv.reader's, for any cuts of the chunks."""

import csv
import io
import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError, CorruptError, TruncatedError
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_scan import QuoteScanner

# Every significant character, dense enough for all combinations. Lone carriage returns are left
# out: they are data for headrace and line ends for csv.reader.
TOKENS = st.sampled_from(["a", "1.5", ",", '"', '"', '""', '",', ',"', "\n", "\r\n", "é", " ", ";"])
# Lists are short by default, so half of them are made long.
TEXTS = (st.lists(TOKENS, max_size=15) | st.lists(TOKENS, min_size=25, max_size=60)).map("".join)
SIZES = st.lists(st.integers(1, 20), min_size=1, max_size=5)


def chunked(data: bytes, sizes: list[int]) -> list[bytes]:
    """Return the data in chunks of these sizes, repeated in turn."""
    chunks, at = [], 0
    for size in itertools.cycle(sizes or [len(data) or 1]):
        if at >= len(data):
            return chunks
        chunks.append(data[at : at + size])
        at += size
    return chunks


def flatten(blocks: list[Block]) -> list[tuple]:
    """Return all records and failures in order; check every invariant of a block on the way."""
    found: list[tuple] = []
    number = 0
    for block in blocks:
        assert block.records, "an empty block"
        assert block.first.record == number
        for index in range(len(block)):
            at = block.position(index)
            found.append((at.record, at.line, at.byte, block.record(index)))
        for failure in block.failures:
            at = failure.position
            found.append((at.record, at.line, at.byte, failure.raw, failure.kind.value, failure.why))
        number += block.records
    assert [f[0] for f in found] == list(range(len(found)))
    return found


def split(data: bytes, sizes: list[int] | None = None, **options) -> list[tuple]:
    chunks = chunked(data, sizes or [])
    blocks = list(CsvFormat(**options).blocks(chunks, Position("o")))
    for block in blocks:
        held = int(block.ends[-1] - block.starts[0]) if len(block) else 0
        assert held <= options.get("block_bytes_max", held) or len(block) == 1
    return flatten(blocks)


def records(data: bytes, sizes: list[int] | None = None, **options) -> list[bytes]:
    return [found[3] for found in split(data, sizes, **options) if len(found) == 4]


def read_with_csv_reader(text: str) -> tuple[list[tuple], tuple | None]:
    """Return the records of csv.reader with line, byte and raw text.

    The second result is the unclosed record, or None.
    """
    lines = text.splitlines(keepends=True) if "\n" in text else [text] if text else []
    marked = [*lines[:-1], (lines[-1] if lines else "").removesuffix("\n") + "\n", "MARK"]
    rows = list(csv.reader(marked))
    unclosed = rows[-1] != ["MARK"]
    reader = csv.reader(lines)
    found: list[tuple] = []
    before = 0
    for row in reader:
        raw = "".join(lines[before : reader.line_num])
        start = len("".join(lines[:before]).encode())
        raw = raw.removesuffix("\n").removesuffix("\r") if raw.endswith("\n") else raw
        if row:
            found.append((len(found), before + 1, start, raw.encode()))
        before = reader.line_num
    return found, found.pop() if unclosed and found else None


def reference_entries(data: bytes, limit: int) -> list[tuple]:
    """Return the entries with the limit on a record's length, computed byte by byte."""
    found: list[tuple] = []
    start, line = 0, 1
    while start < len(data):
        inside, field_start, after_quote, opened = False, True, False, line
        at, here = start, line
        end = None
        while at < len(data) and at - start <= limit:
            byte = data[at : at + 1]
            if byte == b"\n" and not inside:
                end = at
                break
            here += byte == b"\n"
            if byte == b'"' and inside:
                inside, field_start, after_quote = False, False, True
            elif byte == b'"' and (field_start or after_quote):
                opened = opened if after_quote else here
                inside = True
            elif not inside:
                field_start, after_quote = byte == b",", False
            at += 1
        if end is None and len(data) - start > limit:
            raw = data[start : start + limit]
            found.append((len(found), line, start, raw, "format", f"longer than record_bytes_max={limit}"))
            newline = data.find(b"\n", start + limit)
            stop = len(data) if newline < 0 else newline + 1
        elif end is None and inside:
            why = f"quote opened on line {opened - line + 1} of the record is not closed"
            found.append((len(found), line, start, data[start:], "format", why))
            stop = len(data)
        else:
            stop = len(data) if end is None else end + 1
            record = data[start : len(data) if end is None else end]
            record = record.removesuffix(b"\r")
            if record:
                found.append((len(found), line, start, record))
        line += data.count(b"\n", start, stop)
        start = stop
    return found


@settings(max_examples=levels.examples(4))
@given(TEXTS, SIZES, st.integers(1, 40))
@example('a,"b\n', [1], 5)
@example('"a""\n"\nb', [3], 4)
@example('5" disk,"x\ny"\n"z', [1], 40)
def test_records_equal_csv_readers_for_any_chunks(text, sizes, block_bytes_max):
    """Stray quotes are included."""
    expected, unclosed = read_with_csv_reader(text)
    found = split(text.encode(), sizes, block_bytes_max=block_bytes_max)
    if unclosed is not None:
        last = found.pop()
        assert last[:3] == unclosed[:3]
        assert last[4] == "format"
        assert "is not closed" in last[5]
    assert found == expected


@settings(max_examples=levels.examples(4))
@given(
    TEXTS.map(str.encode) | st.text('a,"\r\n', min_size=20).map(str.encode),
    SIZES,
    st.integers(1, 20),
    st.integers(1, 60),
)
def test_record_limit_is_independent_of_chunks(data, sizes, limit, block_bytes_max):
    """Records that are too long, unclosed, or follow such records are equal to the reference."""
    data = b"a\n" + data  # A line without a byte order mark.
    options = {"record_bytes_max": limit, "block_bytes_max": block_bytes_max}
    assert split(data, sizes, **options) == reference_entries(data, limit)


def test_every_chunk_size_gives_the_same_entries():
    data = b'\xef\xbb\xbfa,"b\nc"\r\n\r\n\n"x""y",5" disk\n"long long long long long"\n1,2'
    whole = split(data, record_bytes_max=20)
    assert [f[3] for f in whole if len(f) == 4] == [b'a,"b\nc"', b'"x""y",5" disk', b"1,2"]
    for size in range(1, len(data)):
        assert split(data, [size], record_bytes_max=20) == whole


def test_positions_count_bom_blank_lines_and_quoted_newlines():
    data = b'\xef\xbb\xbfa\r\n\r\n"x\n\ny",1\n\nz'
    assert split(data) == [(0, 1, 3, b"a"), (1, 3, 8, b'"x\n\ny",1'), (2, 7, 18, b"z")]


def test_records_are_yielded_with_the_chunk_that_ends_them():
    """No record waits for a fuller block once the start of the member is known to be text."""
    seen: list[int] = []

    def chunks():
        yield b"a\n" * 2048
        for number in range(3):
            seen.append(number)
            yield b"b\nc\nd"

    blocks = CsvFormat().blocks(chunks(), Position())
    assert len(next(blocks)) == 2048
    assert seen == []
    assert len(next(blocks)) == 2
    assert seen == [0]
    assert next(blocks).record(0) == b"db"


def test_memoryview_chunks_may_be_overwritten_after_the_next_request():

    def chunks(size):
        buffer = bytearray(size)
        for letter in b"abc":
            buffer[:] = bytes([letter]) * (size - 1) + b"\n"
            yield memoryview(buffer)

    for size in (6000, 2500, 10):
        found = [b.record(0) for b in CsvFormat().blocks(chunks(size), Position())]
        assert found == [bytes([letter]) * (size - 1) for letter in b"abc"]


def test_blocks_respect_their_limit_except_for_a_longer_record():
    data = b"aaaa\n" * 100 + b"b" * 50 + b"\n" + b"cc\n" * 5
    blocks = list(CsvFormat(block_bytes_max=20).blocks([data[:77], data[77:]], Position()))
    sizes = [int(b.ends[-1] - b.starts[0]) for b in blocks]
    assert [s for s in sizes if s > 20] == [50]
    assert [len(b) for b in blocks if b.record(0)[:1] == b"b"] == [1]
    assert sum(map(len, blocks)) == 106


def test_endless_line_is_held_only_up_to_the_record_limit():
    """The next record is found after the line."""
    chunks = itertools.chain([b"x" * 4096] * 1000, [b"\nnext,1\n"])
    blocks = list(CsvFormat(record_bytes_max=10_000).blocks(chunks, Position("o")))
    (failure,) = blocks[0].failures
    assert failure.kind is FailureKind.FORMAT
    assert failure.why == "longer than record_bytes_max=10000"
    assert failure.raw == b"x" * 10_000
    assert blocks[1].position(0) == Position("o", record=1, line=2, byte=4_096_001)
    assert blocks[1].record(0) == b"next,1"


def test_failure_keeps_only_the_first_64_kib():
    (block,) = CsvFormat(record_bytes_max=100_000).blocks([b"y" * 300_000], Position())
    assert len(block.failures[0].raw) == 65536


@pytest.fixture
def scanned(monkeypatch):
    """Record the number of bytes of each scan for record ends."""
    sizes = []
    scan = QuoteScanner.scan

    def counting(self, text, state):
        sizes.append(len(text))
        return scan(self, text, state)

    monkeypatch.setattr(QuoteScanner, "scan", counting)
    return sizes


def test_many_overlong_records_take_linear_time(scanned):
    """Each is scanned again in small windows."""
    data = (b"z" * 5000 + b"\n") * 400
    blocks = list(CsvFormat(record_bytes_max=2000).blocks([data], Position()))
    assert sum(len(b.failures) for b in blocks) == 400
    assert sum(scanned) < 4 * len(data)


def test_long_record_in_small_chunks_is_scanned_once(scanned):
    """The state of the scan outlives the chunk."""
    data = b'"' + b"q\n" * 50_000 + b'",1\n'
    assert records(data, [100]) == [data[:-1]]
    assert sum(scanned) < 1.2 * len(data)


@for_each("size", [1, 7, 10_000])
def test_unclosed_quote_is_one_failure_with_its_line(size):
    data = b'a,b\n1,"x\n2\n3,""\n' + b"4,5\n" * 3
    found = split(data, [size])
    assert found[0] == (0, 1, 0, b"a,b")
    assert found[1:] == [(1, 2, 4, data[4:], "format", "quote opened on line 1 of the record is not closed")]


def test_header_is_data_dropped_or_names():
    """Records are counted from the first one after the header."""
    data = b'id,"full\nname",x\n1,a,b\n2,c,d\n'
    assert len(split(data)) == 3
    below = [(0, 3, 17, b"1,a,b"), (1, 4, 23, b"2,c,d")]
    assert split(data, [4], header="drop") == below
    for size in (1, 5, 100):
        blocks = list(CsvFormat(header="names").blocks(chunked(data, [size]), Position("o")))
        assert flatten(blocks) == below
        assert {b.column_names for b in blocks} == {("id", "full\nname", "x")}


def test_failures_are_counted_from_the_header_too():
    found = split(b"h\n1\n" + b"x" * 30 + b"\n2\n", [3], header="drop", record_bytes_max=10)
    assert [(f[0], f[1]) for f in found] == [(0, 2), (1, 3), (2, 4)]


@for_each(
    ("header", "why"),
    [
        (b'"a"b,c\n1,2\n', "header: text after the closing quote of column 0"),
        (b"\xff\xfa,c\n1,2\n", "header: 'utf-8' codec"),
        (b"a" * 50 + b"\n1,2\n", "header: longer than record_bytes_max=40"),
        (b'"a,b\n1,2\n', "header: quote opened on line 1 of the record is not closed"),
    ],
)
def test_invalid_header_fails_the_member_once(header, why):
    (block,) = CsvFormat(header="names", record_bytes_max=40).blocks([header], Position("o"))
    (failure,) = block.failures
    assert failure.kind is FailureKind.OBJECT
    assert failure.why.startswith(why)
    assert len(block) == 0


@for_each("data", [b"", b"\n\r\n\n", b"\xef\xbb\xbf"])
@for_each("header", ["none", "drop", "names"])
def test_empty_input_gives_no_entries(data, header):
    assert split(data, header=header) == []


@for_each("size", [1, 100, 5000, 1 << 20])
def test_nul_near_the_start_is_not_text(size):
    """The first 4096 bytes decide, for any chunks. The rest is read and discarded."""
    data = b"a,b\n" * 1000 + b"\0" + b"c\n" * 5000
    left = iter(chunked(data, [size]))
    (block,) = CsvFormat().blocks(left, Position("o", "m"))
    (failure,) = block.failures
    assert failure.kind is FailureKind.OBJECT
    assert failure.why.startswith("not CSV text: NUL byte at offset 4000; use --members")
    assert next(left, None) is None
    later = b"a" * 4095 + b"\n\0\n"
    assert records(later, [size]) == [b"a" * 4095, b"\0"]


def test_utf16_failure_names_the_encoding():
    (block,) = CsvFormat().blocks(["a,b\n".encode("utf-16")], Position())
    assert "UTF-16; read it with --encoding utf-16" in block.failures[0].why


@for_each("size", [1, 50, 6000])
def test_whole_records_before_a_broken_stream_are_yielded_first(size):
    """This holds also if the stream breaks before the probe is complete."""

    def chunks(data):
        yield from chunked(data, [size])
        raise TruncatedError("gzip ends early", byte=len(data))

    for data in (b"1,2\n3,4\n5,", b"1,2\n" * 3000 + b"5,"):
        got: list[bytes] = []
        blocks = CsvFormat().blocks(chunks(data), Position())
        with pytest.raises(CorruptError):
            got.extend(block.record(i) for block in blocks for i in range(len(block)))
        assert got == data.split(b"\n")[:-1]


def test_other_delimiters_and_quotes():
    assert records(b"a;'b\n;c'\nd", dialect=CsvDialect(b";", b"'")) == [b"a;'b\n;c'", b"d"]
    assert records(b'a\t"b\nc"\n', dialect=CsvDialect(b"\t", b"")) == [b'a\t"b', b'c"']


@for_each(
    "options",
    [
        {"header": "first"},
        {"comment": '#"'},
        {"comment": ",", "header": "none"},
    ],
)
def test_invalid_options_are_rejected_at_once(options):
    with pytest.raises(ConfigError):
        CsvFormat(**options)


@given(
    st.lists(
        st.lists(
            st.text(st.characters(exclude_characters="\r\0", codec="utf-8"), max_size=6),
            min_size=2,
            max_size=4,
        ),
        max_size=12,
    ),
    st.integers(1, 50),
)
def test_output_of_csv_writer_is_read_back(rows, size):
    from headrace.formats.csv import CsvDialect

    out = io.StringIO()
    csv.writer(out).writerows(rows)
    found = records(out.getvalue().encode(), [size])
    cells = [[c.decode() for c in CsvDialect.from_strings(",", '"').cells(record)] for record in found]
    assert cells == rows


@given(TEXTS.map(lambda t: t.replace("\r", "").replace("\n", "|")))
def test_cells_equal_csv_readers(text):
    """Stray quotes are included."""
    from headrace.formats.csv import CsvDialect

    expected = next(csv.reader([text]), [])
    found = [c.decode() for c in CsvDialect.from_strings(",", '"').cells(text.encode())]
    assert found == (expected or [""])


@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"1,2", b'"a\nb",2', b"x\r,3"]), st.sampled_from([b"\n", b"\r\n", b"\n\n"])
        ),
        max_size=6,
    )
)
def test_positions_hold_the_line_and_byte_of_the_record_start(lines):
    text = b"".join(record + line_end for record, line_end in lines)
    for block in CsvFormat().blocks([text], Position()):
        for index in range(len(block)):
            at = block.position(index)
            assert text.startswith(block.record(index), at.byte)
            assert at.line == 1 + text.count(b"\n", 0, at.byte)
