"""Tests of joined lines, and of blocks taken as one text."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, Position
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.encode import RecordJoiner, raw_records, selection_text, selections_text


def block_of(records, line_ends):
    """Return a block of these records, each followed by its own line end."""
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


@given(st.lists(lines, min_size=1, max_size=6), st.data())
def test_joined_text_equals_joined_records(rows, data):
    """A selection is taken as one text only if the bytes are the same."""
    block = block_of([r for r, _ in rows], [e for _, e in rows])
    start = data.draw(st.integers(0, len(rows) - 1))
    selection = BlockSelection(block, start, data.draw(st.integers(start + 1, len(rows))))
    records = raw_records(selection)
    predictions = [b"p%d" % i for i in range(len(selection))]
    joiner = RecordJoiner(b"<%", b"|%|", b">\n")
    expected = b"".join(b"<%" + r + b"|%|" + p + b">\n" for r, p in zip(records, predictions, strict=True))
    assert joiner.join_records(records, predictions) == expected
    plain = selection_text(selection)
    if plain is not None:
        assert joiner.join_text(plain, predictions) == expected
        assert RecordJoiner(b"", b"|%|", b">\n").join_text(plain, predictions) == expected.replace(b"<%", b"")


@for_each("line_end", [b"\n", b"\r\n"])
def test_plain_lines_are_one_text(line_end):
    """The fast path is really taken, also without a line end at the end."""
    block = block_of([b"a,1", b"b,2", b"c,3"], [line_end, line_end, b""])
    assert selection_text(BlockSelection(block, 0, 3)) == b"a,1\nb,2\nc,3\n"
    assert selection_text(BlockSelection(block, 0, 2)) == b"a,1\nb,2\n"
    assert selection_text(BlockSelection(block, 1, 2)) == b"b,2\n"


@for_each(
    ("records", "line_ends"),
    [
        ([b'"a\nb"', b"c"], [b"\n", b"\n"]),  # a quoted newline
        ([b"a", b"b"], [b"\n\n", b"\n"]),  # a blank line
        ([b"a", b"b", b"c"], [b"\n", b"\r\n", b"\n"]),  # mixed line ends
        ([b"a", b"b"], [b"|", b"|"]),  # no line end
        ([b"a", b"b"], [b"|\n", b"|\n"]),  # no CRLF
        ([b'"a\nb"', b"c"], [b"|", b"\n"]),  # a newline elsewhere
        ([b'"a\nb"'], [b"\n"]),  # a newline in a single record
        ([b"a\rb", b"c"], [b"\r\n", b"\r\n"]),  # a carriage return
        ([b"a\rb", b"c"], [b"|\n", b"\r\n"]),  # a carriage return elsewhere
    ],
)
def test_irregular_lines_are_not_one_text(records, line_ends):
    """A text split anywhere but between records would give wrong lines."""
    assert selection_text(BlockSelection(block_of(records, line_ends), 0, len(records))) is None


def test_selected_rows_are_taken_one_by_one():
    """Failed records stand in the text of the block, so the text cannot be taken as a whole."""
    selection = BlockSelection(block_of([b"a", b"b", b"c"], [b"\n"] * 3), 0, 3, np.array([0, 2]))
    assert selection_text(selection) is None
    assert raw_records(selection) == [b"a", b"c"]


@for_each(
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
def test_selections_text_is_the_records_or_none(text, plain):
    blocks = list(CsvFormat().blocks([text], Position()))
    assert all(block.line_end == b"\n" for block in blocks) == plain
    selections = [
        selection
        for b in blocks
        for selection in (BlockSelection(b, 0, 1), BlockSelection(b, 1, 1), BlockSelection(b, 1, len(b)))
    ]
    records = b"".join(b.record(i) + b"\n" for b in blocks for i in range(len(b)))
    assert selections_text(selections) == (records if plain else None)
    assert selections_text([BlockSelection(blocks[0], 0, 1, np.array([0]))]) is None


def test_raw_records_of_media_are_their_sources():
    """Their bytes are not kept, and a joined prediction must name its source."""
    at = np.zeros(3, np.int64)
    image = Block(Position("a.tar", "cat \udcff.png"), b"", at[:1], at[:1], {"image": at[:1]})
    assert raw_records(BlockSelection(image, 0, 1)) == [b"a.tar!cat \xff.png"]
    times = {"audio": at, "time_ms": np.array([0.0, 1000 / 3, 500.0])}
    sound = Block(Position("talk.wav"), b"", at, at, times)
    assert raw_records(BlockSelection(sound, 1, 3)) == [b"talk.wav#t=0.333333", b"talk.wav#t=0.5"]
    assert raw_records(BlockSelection(sound, 0, 3, np.array([0, 2]))) == [
        b"talk.wav#t=0.0",
        b"talk.wav#t=0.5",
    ]
