"""Tests of text in other encodings: equal records for any chunks, and invalid bytes that cost one record."""

import codecs
import gzip
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.csv_decode import CsvColumnsDecoder, CsvMatrixDecoder
from headrace.formats.csv_dialect import CsvDialect
from headrace.formats.encoding import checked_encoding, invalid_reason, is_utf8, to_utf8
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.line import RawDecoder
from headrace.formats.read import csv_dialect, read_object, text_format
from headrace.formats.read_options import ReadOptions

ENCODINGS = ["latin-1", "cp1252", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "shift_jis", "utf-7", "ascii"]
URI = "memory://b/"


def cut(data: bytes, edges: list[int]) -> list[bytes]:
    return [data[a:b] for a, b in pairwise([0, *sorted(edge % (len(data) + 1) for edge in edges), len(data)])]


def is_valid(text: str) -> bool:
    """Return True for text without lone surrogates, which utf-7 can contain."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def read(name: str, data: bytes, **options) -> list[Block]:
    return list(read_object(URI + name, [data], ReadOptions(**options)))


@given(
    st.sampled_from(ENCODINGS),
    st.text(alphabet="ab,\"\n1é日ü'", max_size=40),
    st.lists(st.integers(0, 200), max_size=6),
)
def test_chunks_may_split_characters(encoding, text, edges):
    data = text.encode(encoding, errors="ignore")
    expected = data.decode(encoding).encode()
    assert b"".join(to_utf8(cut(data, edges), encoding)) == expected
    views = [memoryview(chunk) for chunk in cut(data, edges)]
    assert b"".join(to_utf8(views, encoding)) == expected


@given(
    st.sampled_from(["utf-16", "utf-32"]), st.text(alphabet="ab\né", max_size=9), st.lists(st.integers(0, 9))
)
def test_text_without_a_byte_order_mark_is_little_endian(encoding, text, edges):
    data = text.encode(f"{encoding}-le")
    assert b"".join(to_utf8(cut(data, edges), encoding)) == text.encode()


@given(st.sampled_from(ENCODINGS), st.binary(max_size=40), st.lists(st.integers(0, 200), max_size=6))
def test_invalid_bytes_become_invalid_utf8_for_any_chunks(encoding, data, edges):
    found = b"".join(to_utf8(cut(data, edges), encoding))
    assert found == b"".join(to_utf8([data], encoding))
    try:
        expected = data.decode(encoding)
    except UnicodeDecodeError:
        assert b"\xff" in found
    else:
        if is_valid(expected):
            assert found == expected.encode()


@for_each(
    ("encoding", "bad"),
    [("ascii", b"\xe9"), ("cp1252", b"\x81"), ("shift_jis", b"\xff"), ("utf-16-le", b"\x00\xd8")],
)
def test_invalid_bytes_cost_only_their_record(encoding, bad):
    rows = [f"{i},a\n".encode(encoding) for i in range(6)]
    rows[2] = "2,".encode(encoding) + bad + "\n".encode(encoding)
    (block,) = read("a.csv", b"".join(rows), encoding=encoding)
    dialect = csv_dialect("a.csv", ReadOptions(encoding=encoding))
    decoded = CsvColumnsDecoder({"n": (0, "int64"), "t": (1, "text")}, dialect=dialect).decode(block)
    assert decoded.tensors["n"].tolist() == [0, 1, 3, 4, 5]
    (failure,) = decoded.failures
    assert (failure.position.record, failure.kind) == (2, FailureKind.DECODE)
    assert failure.why == f"column 1: not {encoding}"
    matrix = CsvMatrixDecoder("x", columns=[1], width=2, dialect=dialect).decode(block)
    assert f"column 1: not {encoding}" in [f.why for f in matrix.failures]


def test_messages_of_lines_and_json_name_the_encoding():
    (block,) = read("a.txt", b"good\nb\xe9d\n", encoding="ascii", format="line")
    for as_text in (True, False):
        decoded = RawDecoder("x", text=as_text, encoding="ascii").decode(block)
        assert [f.why for f in decoded.failures] == ["not ascii at byte 1 of the record"]
        assert decoded.tensors["x"].tolist() == ["good" if as_text else b"good"]
    (block,) = read("a.jsonl", b'{"x": 1}\n{"x": "\xe9"}\nnone\n', encoding="ascii")
    decoder = JsonDecoder({"x": JsonField("x", np.dtype(np.float32), ())}, encoding="ascii")
    reasons = [f.why for f in decoder.decode(block).failures]
    assert reasons[0] == "not JSON: not ascii"
    assert reasons[1].startswith("not JSON: ")
    assert "ascii" not in reasons[1]


@for_each("name", ["a.csv", "a.txt", "a.csv.gz"])
def test_records_are_decoded_after_decompression(name):
    data = "a,é\n1,日\n".encode("utf-16")
    data = gzip.compress(data) if name.endswith("gz") else data
    (block,) = read(name, data, encoding="utf-16")
    assert block.texts() == ["a,é".encode(), "1,日".encode()]
    # Positions count the bytes of UTF-8.
    assert block.position(1) == Position(URI + name, record=1, line=2, byte=5)


@for_each(
    ("name", "kind", "texts"),
    [
        ("a.jsonl", "auto", [b'{"x": 1}', '"é"'.encode()]),
        ("a.json", "auto", ['{"x": 1}\n"é"'.encode()]),
        ("a.bin", "whole", ['{"x": 1}\n"é"\n'.encode("utf-16")]),
    ],
)
def test_encoding_applies_to_text_formats_alone(name, kind, texts):
    blocks = read(name, '{"x": 1}\n"é"\n'.encode("utf-16"), encoding="utf-16", format=kind)
    assert [text for block in blocks for text in block.texts()] == texts


def test_only_utf8_is_cut_into_ranges():
    assert text_format(URI + "a.csv", ReadOptions(encoding="UTF_8")) is not None
    assert text_format(URI + "a.csv", ReadOptions(encoding="utf-8-sig")) is not None
    assert text_format(URI + "a.csv", ReadOptions(encoding="latin-1")) is None
    assert text_format(URI + "a.jsonl", ReadOptions(encoding="utf-16")) is None


@for_each(("encoding", "name"), [("utf-16", "utf-16"), ("utf-32", "utf-32")])
def test_failure_of_a_byte_order_mark_names_the_option(encoding, name):
    for bom_order in ("le", "be"):
        bom = getattr(codecs, f"BOM_{encoding.upper().replace('-', '')}_{bom_order.upper()}")
        (block,) = read("a.csv", bom + "1,2\n".encode(f"{encoding}-{bom_order}"))
        assert block.failures[0].why.endswith(f"read it with --encoding {name}")


@for_each("name", ["base64", "rot13", "no-such", "idna", "punycode", "undefined", "", "a\0b"])
def test_names_that_are_not_text_encodings_are_refused(name):
    with pytest.raises(ConfigError, match="must be a text encoding known to Python"):
        checked_encoding(name)
    with pytest.raises(ConfigError, match="encoding must be a text encoding"):
        ReadOptions(encoding=name)


def test_reasons_name_the_encoding():
    assert [invalid_reason(name) for name in ("utf8", "UTF-8-SIG", "latin-1")] == [
        "not UTF-8",
        "not UTF-8",
        "not latin-1",
    ]
    assert is_utf8("U8")
    assert CsvDialect.from_strings(encoding="latin-1").encoding == "latin-1"
