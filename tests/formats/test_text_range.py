"""Tests of text ranges: together they give the records of the whole text."""

import random
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

import levels
from cases import for_each
from headrace.core.block import Position
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.line import JsonLinesFormat
from headrace.formats.text_range import TextRange, guess_record_start

URI = "memory://b/a.csv"


def entries(blocks, *, placed: bool = True) -> list[tuple]:
    """Return every record and failure with its place: number, line and byte, or only the byte."""
    found = []
    for block in blocks:
        rows = [(block.position(i), block.record(i)) for i in range(len(block))]
        for at, what in [*rows, *((f.position, f.why) for f in block.failures)]:
            found.append((at.record, at.line, at.byte, what) if placed else (at.byte, what))
    return found


def chunks_of(text: bytes, start: int, size: int):
    return (text[at : at + size] for at in range(start, len(text), size))


def run_range(text_format, text: bytes, start: int, stop: int | None, *, size: int = 7, begin=None):
    """Return the blocks, the begin and the end of one range."""
    cut = TextRange(text_format, start, stop, begin=begin)
    blocks = list(cut.blocks(chunks_of(text, cut.first_byte, size), URI))
    assert cut.begin is not None
    assert cut.end is not None
    return blocks, cut.begin, cut.end


def run_ranges(text_format, text: bytes, edges: list[int], size: int, *, chained: bool):
    """Return the blocks of all ranges and the number of wrong guesses, which are read again."""
    found, repaired = [], 0
    before = Position(URI)
    for start, stop in pairwise([0, *edges, None]):
        blocks, begin, end = run_range(
            text_format, text, start, stop, size=size, begin=before if chained else None
        )
        if begin.byte != before.byte and start:
            repaired += 1
            blocks, _, end = run_range(text_format, text, start, stop, size=size, begin=before)
        found += blocks
        before = end
    assert before.byte == len(text)
    return found, repaired


FORMATS = [
    CsvFormat(record_bytes_max=40, block_bytes_max=30),
    JsonLinesFormat(record_bytes_max=40, block_bytes_max=30),
    CsvFormat(dialect=CsvDialect(quote=b""), record_bytes_max=1000),
]
TEXTS = st.text(alphabet='ab",\n\r', max_size=120).map(str.encode)


@given(
    st.sampled_from(FORMATS),
    TEXTS,
    st.lists(st.integers(1, 119), max_size=5, unique=True).map(sorted),
    st.integers(1, 50),
    st.booleans(),
)
def test_ranges_together_give_the_whole_text_for_any_cuts(text_format, text, edges, size, chained):
    edges = [edge for edge in edges if edge < len(text)]
    whole = entries(text_format.blocks([text], Position(URI)), placed=chained)

    found, repaired = run_ranges(text_format, text, edges, size, chained=chained)

    assert entries(found, placed=chained) == whole
    assert not (chained and repaired)


def random_rows(dice):
    """Return quoted cells of letters, spaces, delimiters and newlines."""
    return [
        ["".join(dice.choices("ab ,\n", k=dice.randint(1, 9))) for _ in range(dice.randint(2, 4))]
        for _ in range(dice.randint(3, 40))
    ]


def test_begin_in_quoted_text_is_mostly_guessed_right():
    """A few texts make sense both ways, such as cells of only delimiters and newlines."""
    dice, wrong, tried = random.Random(11), 0, 0
    while tried < levels.by_level(100, 300, 1000):
        rows = random_rows(dice)
        if any(set(cell) <= set(",\n") for row in rows for cell in row):
            continue
        text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows).encode()
        edge = dice.randrange(1, len(text))
        text_format = CsvFormat()
        _, _, end = run_range(text_format, text, 0, edge)
        _, begin, _ = run_range(text_format, text, edge, None)
        tried += 1
        wrong += begin.byte != end.byte
    assert wrong <= tried // 50


def test_wrong_guess_is_detected_and_read_again():
    # Read from inside the quotes, this text looks as if it were outside: every quote may open a
    # field.
    text = b"a,b\n" + b'1,"x\n,","\n,","\n,","\n,","\n,","\n,","\n"\n2,y\n'
    found, repaired = run_ranges(CsvFormat(), text, [8, 20], 7, chained=False)
    assert entries(found, placed=False) == entries(CsvFormat().blocks([text], Position(URI)), placed=False)
    assert repaired


def test_range_without_a_record_of_its_own_is_empty():
    text = b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nb\n"
    blocks, begin, end = run_range(JsonLinesFormat(), text, 10, 20)
    assert (blocks, begin.byte, end.byte) == ([], 33, 33)


def test_no_chunk_is_requested_after_the_last_record():
    asked = []

    def chunks():
        for at in range(0, 1000, 10):
            asked.append(at)
            yield b"123456789\n"

    blocks = list(TextRange(JsonLinesFormat(), 0, 25).blocks(chunks(), URI))
    assert sum(map(len, blocks)) == 3
    assert len(asked) <= 410  # The first 4096 bytes decide if it is text.
    cut = TextRange(JsonLinesFormat(), 21, 25, begin=Position(URI, byte=30, record=3, line=4))
    assert list(cut.blocks(chunks(), URI)) == []
    assert cut.end == Position(URI, byte=30, record=3, line=4)


def test_header_names_reach_every_range():
    text = b"a,b\n" + b"1,2\n" * 20
    cut = TextRange(CsvFormat(header="names"), 40, None, column_names=("a", "b"))
    blocks = list(cut.blocks(chunks_of(text, cut.first_byte, 9), URI))
    assert {b.column_names for b in blocks} == {("a", "b")}
    assert sum(map(len, blocks)) == 11


def test_byte_order_mark_and_header_belong_to_the_first_range():
    text = b"\xef\xbb\xbfa,b\n1,2\n3,4\n"
    cut = TextRange(CsvFormat(header="names"), 0, 8)
    blocks = list(cut.blocks(chunks_of(text, 0, 5), URI))
    assert entries(blocks) == [(0, 2, 7, b"1,2")]
    assert cut.end is not None
    assert (cut.end.byte, cut.end.line, cut.end.record) == (11, 3, 1)


@for_each(
    ("window", "offset"),
    [
        (b"", None),
        (b"abc", None),
        (b'b","c\nd"\n1,"x"\n', 9),
        (b'b,"c\nd"\n1,"x"\n', 8),
        (b'\n"a","b"\n', 1),
    ],
)
def test_guess_record_start(window, offset):
    assert guess_record_start(window, CsvFormat().scanner()) == offset
