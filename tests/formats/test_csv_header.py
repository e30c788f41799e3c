"""Tests of the first record of a CSV text: a header of known names, or data."""

import csv
import io
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvFormat
from headrace.formats.read import read_object, text_format
from headrace.formats.read_options import ReadOptions
from headrace.formats.text_range import TextRange

URI = "memory://b/a.csv"
CELLS = st.sampled_from(["a", "b", "c", "1", ""])


def blocks_of(data: bytes, **options) -> list[Block]:
    return list(CsvFormat(**options).blocks([data[:3], data[3:]], Position(URI)))


def records_of(blocks: list[Block]) -> list[tuple]:
    return [
        (b.position(i).record, b.position(i).line, b.record(i), b.column_names)
        for b in blocks
        for i in range(len(b))
    ]


@for_each(
    ("first", "names"),
    [
        (b"a,b", ("a", "b")),
        (b"b,a", ("b", "a")),
        (b'"b","a"\r', ("b", "a")),
        (b"\n\nb,a", ("b", "a")),
    ],
)
def test_known_names_in_any_order_are_a_header(first, names):
    data = first + b"\n1,2\n3,4\n"
    line = first.count(b"\n") + 2
    assert records_of(blocks_of(data, names=("a", "b"))) == [
        (0, line, b"1,2", names),
        (1, line + 1, b"3,4", names),
    ]


@for_each("first", [b"a,c", b"a", b"a,b,a", b"A,b", b" a,b", b"1,2", b'"a"x,b', b"\xff,b"])
def test_other_first_records_are_data(first):
    """Their columns have the names in the given order."""
    assert records_of(blocks_of(first + b"\n1,2\n", names=("a", "b"))) == [
        (0, 1, first, ("a", "b")),
        (1, 2, b"1,2", ("a", "b")),
    ]


@for_each(
    ("header", "names", "expected"),
    [
        ("auto", (), [(b"a,b", None), (b"1,2", None)]),
        ("none", (), [(b"a,b", None), (b"1,2", None)]),
        ("none", ("a", "b"), [(b"a,b", ("a", "b")), (b"1,2", ("a", "b"))]),
        ("drop", ("x", "y"), [(b"1,2", ("x", "y"))]),
        ("drop", (), [(b"1,2", None)]),
        ("names", ("x", "y"), [(b"1,2", ("a", "b"))]),
    ],
)
def test_names_complete_the_other_uses_of_a_header(header, names, expected):
    blocks = blocks_of(b"a,b\n1,2\n", header=header, names=names)
    assert [(record, b.column_names) for b in blocks for record in b.texts()] == expected


def test_header_follows_skipped_rows_and_comments():
    data = b'a,b\n"junk\n# a,b\n\nb,a\n# more\n1,2\n'
    blocks = blocks_of(data, names=("a", "b"), skip_rows=2, comment="#")
    assert records_of(blocks) == [(0, 7, b"1,2", ("b", "a"))]


@for_each(("data", "names"), [(b"b,a", ("b", "a")), (b"b,a\n", ("b", "a")), (b"\nb,a\n\n", ("b", "a"))])
@for_each("header", ["auto", "names"])
def test_object_of_a_header_alone_has_one_empty_block_with_the_names(header, data, names):
    (block,) = blocks_of(data, header=header, names=("a", "b"))
    assert (len(block), block.records, block.column_names) == (0, 0, names)
    assert (block.first.record, block.first.byte) == (0, len(data))


def test_object_without_records_has_no_block():
    assert blocks_of(b"", names=("a",)) == blocks_of(b"\n\n", names=("a",)) == []
    assert blocks_of(b"a,b\n", header="drop") == []


def test_unreadable_first_record_is_a_failed_record_with_auto():
    data = b"x" * 50 + b"\n1,2\n"
    blocks = blocks_of(data, names=("a", "b"), record_bytes_max=10)
    assert blocks[0].failures[0].kind is FailureKind.FORMAT
    assert records_of(blocks) == [(1, 2, b"1,2", ("a", "b"))]
    (block,) = blocks_of(data, header="names", record_bytes_max=10)
    assert block.failures[0].kind is FailureKind.OBJECT


def test_header_before_a_failed_record_is_kept():
    data = b"b,a\n" + b"x" * 50 + b"\n1,2\n"
    blocks = blocks_of(data, names=("a", "b"), record_bytes_max=10)
    assert [f.position.record for block in blocks for f in block.failures] == [0]
    assert records_of(blocks) == [(1, 3, b"1,2", ("b", "a"))]


def test_every_member_is_judged_by_its_own_first_record(tmp_path):
    import tarfile

    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in (("a.csv", b"b,a\n1,2\n"), ("b.csv", b"1,2\n"), ("c.csv", b"a,b\n5,6\n")):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    blocks = list(read_object("memory://b/a.tar", [path.read_bytes()], ReadOptions(names=("a", "b"))))
    assert [(b.texts(), b.column_names) for b in blocks] == [
        ([b"1,2"], ("b", "a")),
        ([b"1,2"], ("a", "b")),
        ([b"5,6"], ("a", "b")),
    ]


@given(
    st.lists(st.lists(CELLS, min_size=1, max_size=3), max_size=6),
    st.permutations(["a", "b"]).map(tuple),
    st.lists(st.integers(1, 30), max_size=4, unique=True).map(sorted),
)
def test_ranges_have_the_records_and_names_of_the_whole_text(rows, names, edges):
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    data = text.getvalue().encode()
    found = text_format(URI, ReadOptions(names=names))
    assert isinstance(found, CsvFormat)
    whole = list(found.blocks([data], Position(URI)))
    column_names = whole[0].column_names if whole else None
    blocks, before = [], Position(URI)
    for start, stop in pairwise([0, *(edge for edge in edges if edge < len(data)), None]):
        text_range = TextRange(found, start, stop, begin=before, column_names=column_names)
        blocks += text_range.blocks([data[before.byte :]], URI)
        assert text_range.end is not None
        before = text_range.end
    assert records_of(blocks) == records_of(whole)
    is_header = bool(rows) and sorted(rows[0]) == sorted(names)
    expected = [",".join(row).encode() or b'""' for row in rows[is_header:]]
    assert [record for _, _, record, _ in records_of(whole)] == expected


def test_unknown_uses_of_a_header_are_refused():
    with pytest.raises(ConfigError, match="header must be one of auto, none, drop, names"):
        CsvFormat(header="first")  # pyright: ignore[reportArgumentType]
