"""Tests of CSV dialects: records, cells and ranges equal to csv.reader's, for any cuts of the text."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError, DataError
from headrace.formats.csv import CsvFormat, TextRows, cell_grid, column_texts
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.csv_scan import record_scanner
from headrace.formats.text_range import TextRange

URI = "file:///a.csv"
DIALECTS = st.sampled_from(
    [
        CsvDialect(escape=b"\\"),
        CsvDialect(quote=b"", escape=b"\\"),
        CsvDialect(b";", b"'", b"^"),
        CsvDialect(b"|", b'"', b"-"),
        CsvDialect(b"\t", b"*"),
        CsvDialect(b" ", b"]", b"["),
        CsvDialect(quote=b""),
        CsvDialect(),
    ]
)
SIZES = st.integers(1, 30)


def texts_of(dialect: CsvDialect, comment: str = "#") -> st.SearchStrategy[str]:
    """Return texts dense with the characters of a dialect.

    Lone carriage returns are left out, because they end lines for csv.reader alone.
    """
    quote, escape = dialect.quote.decode(), dialect.escape.decode()
    tokens = ["a", "1", "é", " ", "\n", "\n", "\r\n", dialect.delimiter.decode(), comment, comment[:1]]
    tokens += [quote, quote * 2, quote + "\n"] if quote else []
    tokens += [escape + token for token in ("", "\n", "x", quote, escape, dialect.delimiter.decode())]
    return (st.lists(st.sampled_from(tokens), max_size=60)).map("".join)


DRAWN = DIALECTS.flatmap(lambda dialect: st.tuples(st.just(dialect), texts_of(dialect)))


def chunks_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def entries(blocks: list[Block]) -> list[tuple]:
    """Return records and failures with number, line and byte."""
    found = []
    for block in blocks:
        rows = [(block.position(i), block.record(i)) for i in range(len(block))]
        found += [(at.record, at.line, at.byte, record) for at, record in rows]
        found += [(f.position.record, f.position.line, f.position.byte, f.why, f.raw) for f in block.failures]
    return found


def csv_rows(text: str, dialect: CsvDialect) -> list[list[str]]:
    """Return the rows of csv.reader without blank lines."""
    reader = csv.reader(
        io.StringIO(text, newline=""),
        delimiter=dialect.delimiter.decode(),
        quotechar=dialect.quote.decode() or None,
        quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
        escapechar=dialect.escape.decode() or None,
    )
    return [row for row in reader if row]


def is_comparable(text: str, dialect: CsvDialect) -> bool:
    """Return True unless a documented difference from csv.reader applies to the text."""
    escape = dialect.escape.decode()
    return not escape or escape + "\r" not in text


@settings(max_examples=levels.examples(10))
@given(DRAWN, SIZES)
@example((CsvDialect(escape=b"\\"), '"a"\\,b\n'), 1)
@example((CsvDialect(escape=b"\\"), 'a\\\nb,"c\\"d\ne",f\\,g\n'), 2)
@example((CsvDialect(escape=b"\\"), '"a""\\""b"\\"c\n'), 3)
def test_records_and_cells_are_those_of_csv_reader(drawn, size):
    dialect, text = drawn
    blocks = list(CsvFormat(dialect=dialect).blocks(chunks_of(text.encode(), size), Position()))
    failures = [f for block in blocks for f in block.failures]
    cells = [[c.decode() for c in dialect.cells(record)] for block in blocks for record in block.texts()]
    if not is_comparable(text, dialect):
        return
    expected = csv_rows(text, dialect)
    if failures:
        # An unclosed quote, or an escape at the end: csv.reader makes a row of the rest.
        assert failures[-1].kind is FailureKind.FORMAT
        assert cells == expected[: len(cells)]
    else:
        assert cells == expected


@settings(max_examples=levels.examples(5))
@given(DRAWN, st.sampled_from(["#", "//", "é%"]), SIZES, st.integers(1, 40))
def test_chunks_and_blocks_do_not_change_the_records(drawn, comment, size, block_bytes):
    dialect, text = drawn
    data = text.replace("#", comment).encode()
    options = {"dialect": dialect, "comment": comment, "header": "none"}
    whole = entries(list(CsvFormat(**options).blocks([data], Position())))
    small = CsvFormat(**options, block_bytes_max=block_bytes)
    assert entries(list(small.blocks(chunks_of(data, size), Position()))) == whole


@settings(max_examples=levels.examples(5))
@given(
    st.sampled_from([CsvDialect(), CsvDialect(escape=b"\\"), CsvDialect(quote=b"")]),
    st.lists(st.sampled_from(["#", "# a,b", '# "open', "1,2", '"#a",3', '"x\n# data\ny",4', "", "5,#6"])),
    SIZES,
    st.integers(0, 3),
)
def test_comments_are_dropped_outside_quotes_only(dialect, lines, size, skipped):
    """Positions count their lines and bytes."""
    data = "".join(f"{line}\n" for line in ["junk", '"junk', "junk,"][:skipped] + lines).encode()
    text_format = CsvFormat(dialect=dialect, comment="#", skip_rows=skipped)
    expected, line_number, byte = [], 1, 0
    for line in data.decode().splitlines(keepends=True)[:skipped]:
        line_number, byte = line_number + 1, byte + len(line)
    # Without quotes, every line is a record or a comment of its own.
    for record in lines if dialect.quote else [part for line in lines for part in line.split("\n")]:
        if record and not record.startswith("#"):
            expected.append((len(expected), line_number, byte, record.encode()))
        line_number, byte = line_number + record.count("\n") + 1, byte + len(record) + 1
    assert entries(list(text_format.blocks(chunks_of(data, size), Position()))) == expected


@settings(max_examples=levels.examples(5))
@given(
    DRAWN,
    st.tuples(
        st.sampled_from(["", "#", "//"]), st.integers(0, 2), st.sampled_from(["none", "names", "auto"])
    ),
    st.lists(st.integers(1, 80), max_size=5, unique=True).map(sorted),
    SIZES,
)
def test_ranges_together_give_the_records_of_the_text(drawn, options, edges, size):
    dialect, text = drawn
    comment, skipped, header = options
    data = text.replace("#", comment or "#").encode()
    text_format = CsvFormat(
        dialect=dialect,
        comment=comment,
        skip_rows=skipped,
        header=header,
        names=("a", "1") if header == "auto" else (),
    )
    whole = list(text_format.blocks([data], Position(URI)))
    if any(failure.kind is FailureKind.OBJECT for block in whole for failure in block.failures):
        return  # an unreadable header; the run does not read the other ranges
    names = whole[0].column_names if whole else None
    found, before = [], Position(URI)
    for start, stop in pairwise([0, *(edge for edge in edges if edge < len(data)), None]):
        guessed = TextRange(text_format, start, stop, column_names=names)
        blocks = list(guessed.blocks(chunks_of(data[guessed.first_byte :], size), URI))
        if start:
            # The guess is right, or is detected as wrong and read again.
            assert guessed.begin is not None
            bytes_of = [position[2:4] for position in entries(blocks)]
            text_range = TextRange(text_format, start, stop, begin=before, column_names=names)
            blocks = list(text_range.blocks(chunks_of(data[before.byte :], size), URI))
            if guessed.begin.byte == before.byte:
                assert [position[2:4] for position in entries(blocks)] == bytes_of
            guessed = text_range
        assert guessed.end is not None
        found, before = found + blocks, guessed.end
    assert entries(found) == entries(whole)
    assert {block.column_names for block in found if len(block)} <= {names}


@given(DRAWN, st.integers(1, 3))
def test_grid_holds_the_raw_cells_of_every_record_of_the_width(drawn, width):
    dialect, text = drawn
    blocks = CsvFormat(dialect=dialect).blocks([text.encode()], Position())
    records = [record for block in blocks for record in block.texts()]
    if not records:
        return
    grid = cell_grid(TextRows.from_texts(records), dialect, width)
    raw = [dialect.raw_cells(record) for record in records]
    assert grid.rows.tolist() == [i for i, cells in enumerate(raw) if len(cells) == width]
    assert grid.ragged == {i: len(cells) for i, cells in enumerate(raw) if len(cells) != width}
    for column in range(width):
        assert column_texts(grid, column) == [raw[i][column] for i in grid.rows]


@settings(max_examples=levels.examples(5))
@given(DIALECTS, st.lists(st.text(alphabet="a,;'\"\\^|-\t*[] é\r\n#", max_size=6), min_size=1, max_size=5))
def test_encoded_records_read_back(dialect, cells):
    encoded = [cell.encode() for cell in cells]
    if not dialect.quote and cells[-1].endswith("\r"):
        with pytest.raises(DataError, match="ends with a carriage return"):
            dialect.encode_record(encoded)
        return
    if not dialect.quote and not dialect.escape and any(map(dialect.needs_quotes, encoded)):
        with pytest.raises(DataError, match="have neither a quote nor an escape"):
            dialect.encode_record(encoded)
        return
    record = dialect.encode_record(encoded)
    assert dialect.cells(record) == encoded
    if record:
        ends, _ = record_scanner(dialect).scan(record + b"\nx\n", 0)
        assert ends.tolist() == [len(record), len(record) + 2]


@for_each(
    ("characters", "why"),
    [
        ({"delimiter": "é"}, "delimiter must be one ASCII character"),
        ({"delimiter": ""}, "delimiter must be one ASCII character"),
        ({"delimiter": "\n"}, "delimiter must be one ASCII character"),
        ({"quote": "''"}, "quote must be one ASCII character"),
        ({"escape": "\r"}, "escape must be one ASCII character"),
        ({"delimiter": ";", "quote": ";"}, "delimiter and quote are both ';'"),
        ({"escape": '"'}, "quote and escape are both .* a doubled quote needs no escape"),
        ({"delimiter": "|", "escape": "|"}, "delimiter and escape are both"),
        ({"decimal": ","}, "delimiter and decimal are both ','"),
        ({"delimiter": ";", "decimal": ",", "quote": ","}, "quote and decimal are both ','"),
        ({"decimal": "'"}, 'decimal must be "." or ","'),
    ],
)
def test_contradicting_characters_are_refused_with_the_reason(characters, why):
    with pytest.raises(ConfigError, match=why):
        CsvDialect.from_strings(**characters)


@for_each("text", ["a\\", "a,b\n1,\\", "x\\\r"])
def test_escape_at_the_end_of_the_input_is_a_failure(text):
    blocks = CsvFormat(dialect=CsvDialect(escape=b"\\")).blocks([text.encode()], Position())
    (failure,) = [f for block in blocks for f in block.failures]
    assert failure.why == "ends with an escape that escapes no character"


def test_escaped_crlf_is_one_escaped_line_end():
    dialect = CsvDialect(escape=b"\\")
    for size in (1, 2, 3, 50):
        blocks = CsvFormat(dialect=dialect).blocks(chunks_of(b"a\\\r\nb,1\r\nc,2\r\n", size), Position())
        records = [record for block in blocks for record in block.texts()]
        assert records == [b"a\\\r\nb,1", b"c,2"]
        assert dialect.cells(records[0]) == [b"a\r\nb", b"1"]


def test_unclosed_quote_with_escapes_names_its_line():
    dialect = CsvDialect(escape=b"\\")
    blocks = CsvFormat(dialect=dialect).blocks([b'1,2\na\\\nb,"c\n\\"d\n'], Position())
    (failure,) = [f for block in blocks for f in block.failures]
    assert failure.why == "quote opened on line 2 of the record is not closed"


def test_comment_beyond_the_limit_of_a_record_is_no_failure():
    data = b"1,2\n#" + b"x" * 100 + b"\n3,4\n"
    for size in (1, 7, 500):
        blocks = list(CsvFormat(comment="#", record_bytes_max=10).blocks(chunks_of(data, size), Position()))
        assert entries(blocks) == [(0, 1, 0, b"1,2"), (1, 3, 106, b"3,4")]


def test_skipped_rows_may_be_more_than_there_are():
    assert list(CsvFormat(skip_rows=9).blocks([b"a\nb\n"], Position())) == []


@for_each("size", [1, 2, 3, 4, 5, 100])
def test_prefix_of_a_comment_may_be_split_over_chunks(size):
    """The quotes after the prefix do not open; those after a part of it do."""
    data = b'1,2\n//,"3\n/,"4\n5"\n//,"6\n7,8'
    blocks = CsvFormat(comment="//").blocks(chunks_of(data, size), Position())
    assert [record for block in blocks for record in block.texts()] == [b"1,2", b'/,"4\n5"', b"7,8"]


@for_each("size", [1, 2, 4, 100])
def test_escape_directly_after_a_closing_quote_is_data(size):
    data = b'"a"\\\n"b"\\,c\n'
    blocks = CsvFormat(dialect=CsvDialect(escape=b"\\")).blocks(chunks_of(data, size), Position())
    assert [record for block in blocks for record in block.texts()] == [b'"a"\\', b'"b"\\,c']


@for_each("header", ["names", "auto"])
def test_first_range_reads_the_header_even_beyond_its_stop(header):
    text = b"junk\n# comment\n\nb,a\n1,2\n3,4\n"
    text_format = CsvFormat(comment="#", skip_rows=1, header=header, names=("a", "b"))
    text_range = TextRange(text_format, 0, 3)
    blocks = list(text_range.blocks(chunks_of(text, 4), URI))
    assert [(block.texts(), block.column_names) for block in blocks] == [([], ("b", "a"))]
    assert text_range.end == Position(URI, record=0, line=5, byte=20)
