import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.block import Position
from headrace.formats.csv import CsvFormat
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.text_range import TextRange, likely_start

URI = "memory://b/a.csv"


def entries(blocks, *, placed: bool = True) -> list[tuple]:
    """Every record and failure: number, line and byte, or the byte alone; and what it holds."""
    found = []
    for block in blocks:
        rows = [(block.position(i), block.record(i)) for i in range(len(block))]
        for at, what in [*rows, *((f.position, f.why) for f in block.failures)]:
            found.append((at.record, at.line, at.byte, what) if placed else (at.byte, what))
    return found


def pieces(text: bytes, start: int, size: int):
    return (text[at : at + size] for at in range(start, len(text), size))


def run(text_format, text: bytes, start: int, stop: int | None, *, size: int = 7, begin=None):
    """One range's records, and where it begins and ends."""
    cut = TextRange(text_format, start, stop, begin=begin)
    blocks = list(cut.blocks(pieces(text, cut.first_byte, size), URI))
    assert cut.begin is not None
    assert cut.end is not None
    return blocks, cut.begin, cut.end


def in_ranges(text_format, text: bytes, edges: list[int], size: int, *, chained: bool):
    """All ranges, each begun where it guesses; read again where the one before proves the guess wrong."""
    found, repaired = [], 0
    before = Position(URI)
    for start, stop in pairwise([0, *edges, None]):
        blocks, begin, end = run(text_format, text, start, stop, size=size, begin=before if chained else None)
        if begin.byte != before.byte and start:
            repaired += 1
            blocks, _, end = run(text_format, text, start, stop, size=size, begin=before)
        found += blocks
        before = end
    assert before.byte == len(text)
    return found, repaired


FORMATS = [
    CsvFormat(record_bytes_max=40, block_bytes_max=30),
    JsonLinesFormat(record_bytes_max=40, block_bytes_max=30),
    CsvFormat(quote="", record_bytes_max=1000),
]
TEXTS = st.text(alphabet='ab",\n\r', max_size=120).map(str.encode)


@settings(deadline=None)
@given(
    st.sampled_from(FORMATS),
    TEXTS,
    st.lists(st.integers(1, 119), max_size=5, unique=True).map(sorted),
    st.integers(1, 50),
    st.booleans(),
)
def test_ranges_together_are_the_whole_wherever_they_are_cut(text_format, text, edges, size, chained):
    edges = [edge for edge in edges if edge < len(text)]
    whole = entries(text_format.blocks([text], Position(URI)), placed=chained)

    found, repaired = in_ranges(text_format, text, edges, size, chained=chained)

    assert entries(found, placed=chained) == whole
    assert not (chained and repaired)


def random_rows(dice):
    """Quoted cells of letters, spaces, delimiters and newlines."""
    return [
        ["".join(dice.choices("ab ,\n", k=dice.randint(1, 9))) for _ in range(dice.randint(2, 4))]
        for _ in range(dice.randint(3, 40))
    ]


def test_an_edge_in_quoted_text_is_mostly_guessed_right():
    """Mostly is not always: some texts make sense both ways, such as cells of nothing but delimiters and newlines."""
    dice, wrong, tried = random.Random(11), 0, 0
    while tried < 300:
        rows = random_rows(dice)
        if any(set(cell) <= set(",\n") for row in rows for cell in row):
            continue
        text = "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows).encode()
        edge = dice.randrange(1, len(text))
        text_format = CsvFormat()
        _, _, end = run(text_format, text, 0, edge)
        _, begin, _ = run(text_format, text, edge, None)
        tried += 1
        wrong += begin.byte != end.byte
    assert wrong <= tried // 50


def test_a_wrong_guess_is_seen_and_read_again():
    # From inside, this text looks as if it were outside: every quote stands where one may.
    text = b"a,b\n" + b'1,"x\n,","\n,","\n,","\n,","\n,","\n,","\n"\n2,y\n'
    found, repaired = in_ranges(CsvFormat(), text, [8, 20], 7, chained=False)
    assert entries(found, placed=False) == entries(CsvFormat().blocks([text], Position(URI)), placed=False)
    assert repaired


def test_a_range_without_a_record_of_its_own_is_empty():
    text = b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\nb\n"
    blocks, begin, end = run(JsonLinesFormat(), text, 10, 20)
    assert (blocks, begin.byte, end.byte) == ([], 33, 33)


def test_nothing_is_asked_for_behind_the_last_record():
    asked = []

    def chunks():
        for at in range(0, 1000, 10):
            asked.append(at)
            yield b"123456789\n"

    blocks = list(TextRange(JsonLinesFormat(), 0, 25).blocks(chunks(), URI))
    assert sum(map(len, blocks)) == 3
    assert len(asked) <= 410  # the first 4096 bytes tell whether it is text at all
    cut = TextRange(JsonLinesFormat(), 21, 25, begin=Position(URI, byte=30, record=3, line=4))
    assert list(cut.blocks(chunks(), URI)) == []
    assert cut.end == Position(URI, byte=30, record=3, line=4)


def test_the_names_of_the_header_reach_every_range():
    text = b"a,b\n" + b"1,2\n" * 20
    cut = TextRange(CsvFormat(header="names"), 40, None, column_names=("a", "b"))
    blocks = list(cut.blocks(pieces(text, cut.first_byte, 9), URI))
    assert {b.column_names for b in blocks} == {("a", "b")}
    assert sum(map(len, blocks)) == 11


def test_a_byte_order_mark_and_a_header_are_of_the_first_range():
    text = b"\xef\xbb\xbfa,b\n1,2\n3,4\n"
    cut = TextRange(CsvFormat(header="names"), 0, 8)
    blocks = list(cut.blocks(pieces(text, 0, 5), URI))
    assert entries(blocks) == [(0, 2, 7, b"1,2")]
    assert cut.end is not None
    assert (cut.end.byte, cut.end.line, cut.end.record) == (11, 3, 1)


@pytest.mark.parametrize(
    ("window", "offset"),
    [
        (b"", None),
        (b"abc", None),
        (b'b","c\nd"\n1,"x"\n', 9),
        (b'b,"c\nd"\n1,"x"\n', 8),
        (b'\n"a","b"\n', 1),
    ],
)
def test_likely_start(window, offset):
    assert likely_start(window, CsvFormat().scanner()) == offset
