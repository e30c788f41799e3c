"""Tests of CSV decoding: exact numbers with every parser, and one failure for each bad record."""

import struct

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv import CsvDialect, CsvFormat
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.json_path import compile_path
from headrace.formats.line import RawDecoder
from headrace.formats.matrix import NumberParser, orjson_flat_numbers

ENGINES = {
    "simdjson, arrow": {},
    "simdjson": {"delimited_numbers": lambda: None},
    "plain": {"flat_numbers": orjson_flat_numbers, "delimited_numbers": lambda: None},
    "row by row": {"flat_numbers": lambda text, kind: None, "delimited_numbers": lambda: None},
}
GOOD = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map("{:.5f}".format),
    st.integers(-100, 2**65).map(str),
    st.sampled_from(["-0", "-0.0", "0", "1e-0", "1e39", "16777217", "9007199791611905"]),
)
ODD = st.sampled_from(
    [
        "+1",
        ".5",
        "1.",
        "007",
        "nan",
        "inf",
        "-Infinity",
        "1e400",
        " 1 ",
        '"1.5"',
        '"-0"',
        '"1"5',
        "1_0",
        "",
        '""',
        "x",
        "NA",
        "null",
        "true",
        "0x10",
        "[1",
        "1]",
        "{}",
        '"1,5"',
        '"1\n"',
        '5" disk',
        '""""',
        "é",
        "nan(1)",
        "\udcff",
        "-",
    ]
)
CELLS = st.one_of(GOOD, GOOD, GOOD, ODD)


def blocks_of(data: bytes, **options) -> list[Block]:
    return list(CsvFormat(**options).blocks([data] if data else [], Position("o")))


def block_of(data: bytes, **options) -> Block:
    (block,) = blocks_of(data if data.endswith(b"\n") else data + b"\n", **options)
    return block


def bits(value) -> bytes:
    """Return the bits of a float for comparison; all NaNs are equal."""
    return b"nan" if np.isnan(value) else struct.pack("<d", float(value))


def parse_exactly(record: bytes, width: int, columns, convert):
    """Return the numbers of a record parsed one by one, or None if it has none."""
    cells = CsvDialect.from_strings(",", '"').cells(record)
    if len(cells) != width:
        return None
    try:
        texts = [cells[c].decode() for c in columns]
        if any("_" in text or not text.isascii() for text in texts):
            return None
        return [convert(text) for text in texts]
    except ValueError:
        return None


ROW = st.one_of(
    *[st.lists(GOOD, min_size=3, max_size=3)] * 3,
    st.lists(CELLS, min_size=3, max_size=3),
    st.lists(CELLS, min_size=1, max_size=5),
)


@for_each("columns", [None, [1], [2, 0]])
@for_each("engine", ENGINES)
@given(st.lists(ROW, max_size=8) | st.lists(ROW, min_size=10, max_size=40))
@example([["[1", "2", "3"], ["4", "5", "6]"]])
@example([["[1", "2", "3]"], ["4", "5", "6"]])
@example([["1", "2", "3"], [], [], ["4", "5", "6"], ["7", "8", "9"]])
@example(
    [["1", "2", "3"]] * 30 + [["1", "2"]] + [["x", "2", "3"]] + [["1", "2", "3", "4"], ["[1", "2]", "3"]]
)
@example([["1", "-0", "1e-0"], ["0", "0.0", "-0.0"]])
@example([["1", "2", ""], ["", "2", "3"], ["", "", ""]])
def test_every_parser_returns_the_values_of_float(engine, columns, rows):
    """Rows, failures and their order are equal, and values are equal to the last bit."""
    data = "\n".join(",".join(row) for row in rows).encode(errors="surrogateescape") + b"\n"
    decoder = CsvMatrixDecoder("x", columns=columns, width=3, **ENGINES[engine])
    for block in blocks_of(data):
        got = decoder.decode(block)
        expected = {}
        with np.errstate(over="ignore"):
            for i in range(len(block)):
                numbers = parse_exactly(
                    block.record(i), 3, columns or range(3), lambda t: np.float32(float(t))
                )
                if numbers is not None:
                    expected[i] = numbers
        matrix = got.tensors["x"]
        kept = list(range(len(block))) if got.rows is None else got.rows.tolist()
        assert kept == list(expected)
        assert [f.position.record - block.first.record for f in got.failures] == sorted(
            set(range(len(block))) - set(expected)
        )
        if len(block):
            assert matrix.dtype == np.float32
            assert matrix.shape == (len(expected), len(columns or "123"))
        assert [[bits(v) for v in row] for row in matrix] == [[bits(v) for v in r] for r in expected.values()]


@for_each("engine", ENGINES)
@for_each("dtype", ["int8", "uint8", "int64", "uint64", "bool", "float64", "float16"])
def test_dtypes_are_exact_or_fail(engine, dtype):
    """No integer is rounded, wrapped or truncated."""
    texts = [
        "0",
        "1",
        "-1",
        "127",
        "128",
        "255",
        "256",
        "9223372036854775807",
        "18446744073709551615",
        "18446744073709551616",
        "1.0",
        "1.5",
        "1e2",
        "007",
        "+1",
        '"1"',
        "true",
        "FALSE",
        "x",
    ]
    block = block_of("\n".join(texts).encode())
    got = CsvMatrixDecoder("x", dtype=dtype, **ENGINES[engine]).decode(block)
    expected = {}
    for index, text in enumerate(texts):
        bare = text.strip('"')
        try:
            if dtype == "bool":
                value = {"0": False, "1": True, "true": True, "false": False}[bare.lower()]
            elif dtype.startswith("float"):
                value = float(bare)
            else:
                value = int(bare)
                assert np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        except (ValueError, KeyError, AssertionError):
            continue
        expected[index] = value
    assert got.tensors["x"].dtype == np.dtype(dtype)
    assert (got.rows.tolist() if got.rows is not None else list(range(len(texts)))) == list(expected)
    with np.errstate(over="ignore"):
        assert got.tensors["x"][:, 0].tolist() == [np.dtype(dtype).type(v).item() for v in expected.values()]


def test_failures_hold_kind_column_text_and_record():
    data = b"id,age,w\n1,2,3\n4,abc,6\n7,8\n9,,1\n1,2,\xff\n1,2,3,4\n"
    got = CsvMatrixDecoder("x").decode(block_of(data, header="names"))
    assert got.rows.tolist() == [0]
    assert [(f.position.line, f.kind, f.why, f.raw) for f in got.failures] == [
        (3, FailureKind.DECODE, 'column 1 ("age"): "abc" is not a number', b"4,abc,6"),
        (4, FailureKind.DECODE, "has 2 columns, 3 expected", b"7,8"),
        (5, FailureKind.DECODE, 'column 1 ("age"): empty, expected a number', b"9,,1"),
        (6, FailureKind.DECODE, 'column 2 ("w"): not UTF-8', b"1,2,\xff"),
        (7, FailureKind.DECODE, "has 4 columns, 3 expected", b"1,2,3,4"),
    ]
    (failure,) = CsvMatrixDecoder("x", dtype="int32").decode(block_of(b"1\n3000000000")).failures
    assert failure.why == 'column 0: "3000000000" is not an integer that int32 holds'
    (failure,) = CsvMatrixDecoder("x", columns=[2]).decode(block_of(b"a,b,1\na,b,c")).failures
    assert failure.why == 'column 2: "c" is not a number'


@for_each("engine", ENGINES)
def test_ragged_rows_with_the_right_total_are_found(engine):
    """29 and 31 columns are 60 numbers too. The same holds for counts that agree modulo 256."""
    for widths in ([2, 1, 3], [3, 1, 2], [2, 258, 2], [300, 44, 556, 300], [300, 556, 44]):
        data = "\n".join(",".join(["1"] * w) for w in widths).encode()
        got = CsvMatrixDecoder("x", width=widths[0], **ENGINES[engine]).decode(block_of(data))
        assert [f.position.record for f in got.failures] == [
            i for i, w in enumerate(widths) if w != widths[0]
        ]


def test_one_bad_row_does_not_slow_down_the_others(monkeypatch):
    slow = 0
    cells = CsvDialect.cells

    def counting(self, record, *, strict=False):
        nonlocal slow
        slow += 1
        return cells(self, record, strict=strict)

    monkeypatch.setattr(CsvDialect, "cells", counting)
    rows = ["1.5,2.5"] * 4096
    rows[1234] = "1.5,x"
    got = CsvMatrixDecoder("x", width=2).decode(block_of("\n".join(rows).encode()))
    assert [f.position.record for f in got.failures] == [1234]
    assert len(got.tensors["x"]) == 4095
    assert slow <= 8


def test_first_decoded_record_fixes_the_unknown_width():
    decoder = CsvMatrixDecoder("x")
    assert decoder.decode(block_of(b"1,2\n3,4\n")).failures == ()
    got = decoder.decode(block_of(b"1,2,3\n4,5\n"))
    assert [f.why for f in got.failures] == ["has 3 columns, 2 expected"]


def test_columns_by_name_follow_each_header():
    decoder = CsvMatrixDecoder("x", columns=["b", "a"])
    first = decoder.decode(block_of(b"a,b,t\n1,2,x\n", header="names"))
    assert first.tensors["x"].tolist() == [[2, 1]]
    second = decoder.decode(block_of(b't,"b",c,a\n"x, ""y""\n",3,z,4\n', header="names"))
    assert second.tensors["x"].tolist() == [[3, 4]]


def test_missing_column_raises_at_first_and_fails_records_later():
    """The first header shows if the request makes sense; later headers show that the data differ."""
    decoder = CsvMatrixDecoder("x", columns=["age"])
    with pytest.raises(ConfigError, match='no column "age"; the columns are: id, Age'):
        decoder.bind(["id", "Age"])
    with pytest.raises(ConfigError, match='no column "age"; the columns are: id, Age'):
        decoder.decode(block_of(b"id,Age\n1,2\n", header="names"))
    assert decoder.decode(block_of(b"age,id\n1,2\n", header="names")).failures == ()
    got = decoder.decode(block_of(b"id,Age\n1,2\n3,4\n", header="names"))
    assert len(got.tensors["x"]) == 0
    assert [f.why for f in got.failures] == ['there is no column "age"; the columns are: id, Age'] * 2


@for_each(
    ("columns", "header", "why"),
    [
        ([3], "none", "no column 3: records have 3 columns"),
        ([-4], "none", "no column -4"),
        (["a"], "none", "no header was read"),
        (["b"], "names", "more than one column is named"),
    ],
)
def test_unknown_columns_are_rejected(columns, header, why):
    with pytest.raises(ConfigError, match=why):
        CsvMatrixDecoder("x", columns=columns).decode(block_of(b"a,b,b\n1,2,3\n", header=header))


def test_invalid_settings_are_rejected():
    for make in (
        lambda: CsvMatrixDecoder("x", columns=[]),
        lambda: CsvMatrixDecoder("x", width=0),
        lambda: CsvMatrixDecoder("x", dtype="complex64"),
        lambda: CsvMatrixDecoder("x", dialect=CsvDialect(b"ab")),
        lambda: CsvColumnsDecoder({}),
    ):
        with pytest.raises(ConfigError):
            make()


@for_each("engine", ENGINES)
def test_decimal_comma_is_neither_a_number_nor_a_delimiter(engine):
    semicolon = CsvDialect(b";")
    decoder = CsvMatrixDecoder("x", width=2, dialect=semicolon, **ENGINES[engine])
    for data in (b"1,5;2\n3\n", b"1,5\n3,4\n"):
        assert len(decoder.decode(block_of(data, dialect=semicolon)).failures) == 2
    got = decoder.decode(block_of(b"1.5;2\n1,5;2\n3;4\n", dialect=semicolon))
    assert got.tensors["x"].tolist() == [[1.5, 2], [3, 4]]
    assert [f.why for f in got.failures] == ['column 0: "1,5" is not a number']


def test_empty_block_decodes_to_zero_rows():
    assert CsvMatrixDecoder("x", columns=[1, 2]).decode(Block(Position())).tensors["x"].shape == (0, 2)
    got = CsvColumnsDecoder({"a": (0, "int32"), "t": (1, "text")}).decode(Block(Position()))
    assert [(t.shape, t.dtype) for t in got.tensors.values()] == [((0,), np.int32), ((0,), object)]


TEXT_CELLS = st.lists(st.sampled_from(["a", "é", ",", '"', "\n", "\r\n", " ", "1"]), max_size=5).map("".join)


@given(st.lists(st.tuples(CELLS, TEXT_CELLS, st.booleans(), CELLS), max_size=12), st.booleans())
def test_columns_equal_the_cells_of_csv_reader(rows, stray):
    """A record with text and numbers fails for both or for none."""
    lines = []
    for number, text, quoted, last in rows:
        needed = quoted or any(c in text for c in ',"\r\n')
        cell = '"' + text.replace('"', '""') + '"' if needed else text
        lines.append(f"{number},{cell}{'x' if stray else ''},{last}")
    data = "\n".join(lines).encode(errors="surrogateescape")
    decoder = CsvColumnsDecoder(
        {"t": (1, "text"), "n": (0, "float64"), "m": (-1, "float64"), "i": (0, "float32")}, width=3
    )
    for block in blocks_of(data):
        got = decoder.decode(block)
        expected = {}
        for index in range(len(block)):
            cells = CsvDialect.from_strings(",", '"').cells(block.record(index))
            if len(cells) != 3 or any(b"_" in cell or not cell.isascii() for cell in (cells[0], cells[2])):
                continue
            try:
                expected[index] = (float(cells[0].decode()), cells[1].decode(), float(cells[2].decode()))
            except ValueError:
                continue
        kept = list(range(len(block))) if got.rows is None else got.rows.tolist()
        assert kept == list(expected)
        assert len(got.failures) + len(kept) == len(block)
        assert got.tensors["t"].tolist() == [text for _, text, _ in expected.values()]
        for name, at in (("n", 0), ("m", 2)):
            assert [bits(v) for v in got.tensors[name]] == [bits(w[at]) for w in expected.values()]


def test_columns_of_many_types():
    data = b'id,t,v,b\n1,"x, y",2.5,true\n2,\xff,3.5,0\n3,z,w,1\n4,,4.5,FALSE\n'
    columns = {"b": ("b", bool), "i": ("id", np.int64), "t": ("t", "text"), "v": (2, np.float32)}
    got = CsvColumnsDecoder(columns).decode(block_of(data, header="names"))
    assert got.rows.tolist() == [0, 3]
    assert {k: v.tolist() for k, v in got.tensors.items()} == {
        "b": [True, False],
        "i": [1, 4],
        "t": ["x, y", ""],
        "v": [2.5, 4.5],
    }
    assert [t.dtype for t in got.tensors.values()] == [bool, np.int64, object, np.float32]
    assert [f.why for f in got.failures] == [
        'column 1 ("t"): not UTF-8',
        'column 2 ("v"): "w" is not a number',
    ]
    vectors = CsvColumnsDecoder(columns, as_column_vectors=True).decode(block_of(data, header="names"))
    assert {t.shape for t in vectors.tensors.values()} == {(2, 1)}


def test_raw_records_are_bytes_or_text():
    block = block_of('é,"1\n"\n'.encode() + b"\xff\xfe,b\nc\n")
    got = RawDecoder("r").decode(block)
    assert got.tensors["r"].tolist() == [block.record(i) for i in range(3)]
    assert got.rows is None
    got = RawDecoder("r", text=True).decode(block)
    assert got.tensors["r"].tolist() == ['é,"1\n"', "c"]
    assert got.rows.tolist() == [0, 2]
    assert [(f.kind, f.why) for f in got.failures] == [
        (FailureKind.DECODE, "not UTF-8 at byte 0 of the record")
    ]


def test_whole_rows_are_parsed_until_other_columns_are_not_numbers(monkeypatch):
    """The choice of path changes only the time."""
    widths: list[int] = []
    parse_block = NumberParser.parse_block
    monkeypatch.setattr(
        NumberParser,
        "parse_block",
        lambda self, rows, width, **more: widths.append(width) or parse_block(self, rows, width, **more),
    )
    decoder = CsvMatrixDecoder("x", columns=(2, 0), width=3)
    texts = [b"1,2,3\n4,5,6", *[b"1,two,3\n4,5,6\n7,8"] * 4, b"1,2,3\n4,5,6"]
    for text in texts:
        decoded = decoder.decode(block_of(text))
        assert decoded.tensors["x"].tolist() == [[3, 1], [6, 4]]
        assert len(decoded.failures) == text.count(b"7")
    assert widths.count(3) == 4
    assert widths[-1] == 2


@for_each("path", ["$[1:]", "$[-1,0]", "$[:2]", "$[*]", "$[1,1]"])
def test_selection_decodes_the_columns_of_its_indices(path):
    block = block_of(b'1,2,"3"\n4,5,6\nx,8,9\n7,7\n')
    selection = compile_path(path).columns
    by_index = CsvMatrixDecoder("x", columns=list(selection.indices(3, None))).decode(block)
    for options in ({"columns": selection}, {"input_selection": selection}):
        decoded = CsvMatrixDecoder("x", **options).decode(block)
        assert decoded.tensors["x"].tolist() == by_index.tensors["x"].tolist()
        assert decoded.failures == by_index.failures
    assert len(by_index.failures) == (1 if path in {"$[1:]", "$[1,1]"} else 2)


def test_columns_are_found_within_an_input_selection():
    block = block_of(b"i,a,b\n1,2,x\n", header="names")
    input_selection = compile_path("$[1:]").columns
    decoder = CsvColumnsDecoder({"t": (1, "text"), "n": ("a", np.int64)}, input_selection=input_selection)
    decoded = decoder.decode(block)
    assert {name: data.tolist() for name, data in decoded.tensors.items()} == {"t": ["x"], "n": [2]}
    (failure,) = CsvMatrixDecoder("x", columns=[1], input_selection=input_selection).decode(block).failures
    assert failure.why == 'column 2 ("b"): "x" is not a number'
