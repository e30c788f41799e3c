"""Lines woven with records, and which blocks are taken as one text."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.core.block import Block, Position
from headrace.formats.contract import Piece
from headrace.formats.csv import CsvFormat
from headrace.formats.weave import Weave, one_text, plain_text, raw_records


def block_of(records, line_ends):
    """A block of these records, each followed by its own line end."""
    starts, ends, data = [], [], b""
    for record, line_end in zip(records, line_ends, strict=True):
        starts.append(len(data))
        ends.append(len(data) + len(record))
        data += record + line_end
    return Block(Position(), data, np.array(starts, np.int64), np.array(ends, np.int64))


lines = st.tuples(
    st.binary(min_size=1, max_size=6).map(lambda raw: raw.replace(b"\x00", b"%")),
    st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\n\n", b"|", b""]),
)


@settings(deadline=None)
@given(st.lists(lines, min_size=1, max_size=6), st.data())
def test_a_piece_taken_as_one_text_gives_the_lines_that_its_records_give(rows, data):
    """Whichever way is taken, the bytes are the same: and one text is only taken where it can be."""
    block = block_of([r for r, _ in rows], [e for _, e in rows])
    start = data.draw(st.integers(0, len(rows) - 1))
    piece = Piece(block, start, data.draw(st.integers(start + 1, len(rows))))
    records = raw_records(piece)
    predictions = [b"p%d" % i for i in range(len(piece))]
    weave = Weave(b"<%", b"|%|", b">\n")
    expected = b"".join(b"<%" + r + b"|%|" + p + b">\n" for r, p in zip(records, predictions, strict=True))
    assert weave.into_records(records, predictions) == expected
    plain = one_text(piece)
    if plain is not None:
        assert weave.into_text(plain, predictions) == expected
        assert Weave(b"", b"|%|", b">\n").into_text(plain, predictions) == expected.replace(b"<%", b"")


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_plain_lines_are_one_text(line_end):
    """The quick way is really taken, also without a line end at the very end."""
    block = block_of([b"a,1", b"b,2", b"c,3"], [line_end, line_end, b""])
    assert one_text(Piece(block, 0, 3)) == b"a,1\nb,2\nc,3\n"
    assert one_text(Piece(block, 0, 2)) == b"a,1\nb,2\n"
    assert one_text(Piece(block, 1, 2)) == b"b,2\n"


@pytest.mark.parametrize(
    ("records", "line_ends"),
    [
        ([b'"a\nb"', b"c"], [b"\n", b"\n"]),
        ([b"a", b"b"], [b"\n\n", b"\n"]),
        ([b"a", b"b", b"c"], [b"\n", b"\r\n", b"\n"]),
        ([b"a", b"b"], [b"|", b"|"]),
        ([b"a", b"b"], [b"|\n", b"|\n"]),
        ([b'"a\nb"', b"c"], [b"|", b"\n"]),
        ([b'"a\nb"'], [b"\n"]),
        ([b"a\rb", b"c"], [b"\r\n", b"\r\n"]),
        ([b"a\rb", b"c"], [b"|\n", b"\r\n"]),
    ],
    ids=[
        "quoted newline",
        "blank line",
        "mixed line ends",
        "no line end",
        "no CRLF",
        "newline elsewhere",
        "one record",
        "returns",
        "returns elsewhere",
    ],
)
def test_what_is_not_plain_is_not_one_text(records, line_ends):
    """A text split anywhere but between records would give wrong lines."""
    assert one_text(Piece(block_of(records, line_ends), 0, len(records))) is None


def test_chosen_rows_are_taken_one_by_one():
    """Records that failed stand in the block's text, so it cannot be taken whole."""
    piece = Piece(block_of([b"a", b"b", b"c"], [b"\n"] * 3), 0, 3, np.array([0, 2]))
    assert one_text(piece) is None
    assert raw_records(piece) == [b"a", b"c"]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (b"1,2\n3,4\n", True),
        (b"1,2\n3,4", True),
        (b'"1",2\n3,4\n', True),
        (b'"1\n",2\n3,4\n', False),
        (b"1,2\r\n3,4\r\n", False),
        (b"1,2\n\n3,4\n", False),
    ],
)
def test_plain_text_is_the_records_each_with_a_newline_or_none(text, plain):
    blocks = list(CsvFormat().blocks([text], Position()))
    assert all(block.line_end == b"\n" for block in blocks) == plain
    pieces = [piece for b in blocks for piece in (Piece(b, 0, 1), Piece(b, 1, 1), Piece(b, 1, len(b)))]
    records = b"".join(b.record(i) + b"\n" for b in blocks for i in range(len(b)))
    assert plain_text(pieces) == (records if plain else None)
    assert plain_text([Piece(blocks[0], 0, 1, np.array([0]))]) is None


def test_of_media_the_record_is_where_it_comes_from():
    """Their bytes are not kept: without this a joined prediction would not tell whose it is."""
    at = np.zeros(3, np.int64)
    image = Block(Position("a.tar", "cat \udcff.png"), b"", at[:1], at[:1], {"image": at[:1]})
    assert raw_records(Piece(image, 0, 1)) == [b"a.tar!cat \xff.png"]
    times = {"audio": at, "time_ms": np.array([0.0, 1000 / 3, 500.0])}
    sound = Block(Position("talk.wav"), b"", at, at, times)
    assert raw_records(Piece(sound, 1, 3)) == [b"talk.wav#t=0.333333", b"talk.wav#t=0.5"]
    assert raw_records(Piece(sound, 0, 3, np.array([0, 2]))) == [b"talk.wav#t=0.0", b"talk.wav#t=0.5"]
