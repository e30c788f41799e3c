"""The elements of a JSON array are records: the same for any cuts, and those that `json` finds."""

import json
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import for_each
from formats.json_texts import blanks, separated, texts
from headrace.core.block import Failure, FailureKind, Position
from headrace.core.errors import TruncatedError
from headrace.formats.json_array import JsonArrayFormat, JsonOrArrayFormat
from headrace.formats.read import read_object
from headrace.formats.read_options import ReadOptions
from levels import examples

URI = "memory://in/a.json"
arrays = separated("[", st.lists(texts, max_size=6), "]")


def cut(text: bytes, size: int) -> list[bytes]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def entries(
    text: bytes, size: int = 1 << 20, kind=JsonArrayFormat, **options
) -> list[tuple[Position, bytes | Failure]]:
    """Return the position of each record with its bytes, or with its failure."""
    found: list[tuple[Position, bytes | Failure]] = []
    for block in kind(**options).blocks(cut(text, size), Position(URI)):
        found += [(block.position(index), block.record(index)) for index in range(len(block))]
        found += [(failure.position, failure) for failure in block.failures]
    return found


@settings(max_examples=examples(3))
@given(arrays, blanks, st.integers(1, 9), st.integers(1, 40))
def test_elements_are_those_that_json_finds(text, around, size, block_bytes_max):
    data = (around + text + around).encode()
    found = entries(data, size, block_bytes_max=block_bytes_max)
    assert [json.loads(raw) for _, raw in found] == json.loads(text)
    for number, (position, raw) in enumerate(found):
        assert position.record == number
        assert data[position.byte : position.byte + len(raw)] == raw == raw.strip()
        assert position.line == 1 + data.count(b"\n", 0, position.byte)


@settings(max_examples=examples(2))
@given(st.binary(max_size=60) | st.text('[]{},"\\ 1', max_size=60).map(str.encode), st.integers(1, 5))
def test_any_text_gives_the_same_records_for_any_cuts(text, size):
    data = b"[" + text

    def found(size: int) -> list[object]:
        try:
            return entries(data, size)
        except TruncatedError as error:
            return [str(error)]

    assert found(size) == found(100)


@for_each(
    ("text", "kind", "records"),
    [
        (b'[{"a": 1}, {"a": 2}]', JsonOrArrayFormat, [b'{"a": 1}', b'{"a": 2}']),
        (b' [\n{"a": 1}]', JsonOrArrayFormat, [b'{"a": 1}']),
        (b"\xef\xbb\xbf[{}]", JsonOrArrayFormat, [b"{}"]),
        (b"[]", JsonOrArrayFormat, []),
        (b" [ \n ] ", JsonOrArrayFormat, []),
        (b"[1, 2]", JsonOrArrayFormat, [b"[1, 2]"]),
        (b'[[{"a": 1}]]', JsonOrArrayFormat, [b'[[{"a": 1}]]']),
        (b'{"a": [{}]}', JsonOrArrayFormat, [b'{"a": [{}]}']),
        (b"7", JsonOrArrayFormat, [b"7"]),
        (b"", JsonOrArrayFormat, [b""]),
        (b"[1, [2, 3]]", JsonArrayFormat, [b"1", b"[2, 3]"]),
        (b'["]", "\\\\", "\\"]"]', JsonArrayFormat, [b'"]"', b'"\\\\"', b'"\\"]"']),
    ],
)
def test_only_arrays_of_objects_are_read_as_their_elements_unless_asked_for(text, kind, records):
    for size in (1, 2, 100):
        assert [raw for _, raw in entries(text, size, kind)] == records


@for_each(
    ("options", "records"),
    [
        ({}, [b'{"a":1}', b'{"a":2}']),
        ({"format": "jsonarray"}, [b'{"a":1}', b'{"a":2}']),
        ({"format": "json"}, [b'[{"a":1},{"a":2}]']),
    ],
)
def test_format_json_is_one_document(options, records):
    blocks = read_object(URI, [b'[{"a":1},{"a":2}]'], ReadOptions(**options))
    assert [text for block in blocks for text in block.texts()] == records


def failures(text: bytes, **options) -> list[tuple[int, int, FailureKind, str]]:
    return [
        (position.record, position.byte, entry.kind, entry.why)
        for position, entry in entries(text, **options)
        if isinstance(entry, Failure)
    ]


def test_missing_values_fail_alone():
    text = b"[1,,2, ]"
    assert failures(text) == [
        (1, 3, FailureKind.FORMAT, "there is no value"),
        (3, 7, FailureKind.FORMAT, "there is no value"),
    ]
    assert [raw for _, raw in entries(text) if isinstance(raw, bytes)] == [b"1", b"2"]


def test_garbage_between_commas_is_one_record():
    assert [raw for _, raw in entries(b"[{} x {}, 2]")] == [b"{} x {}", b"2"]


@for_each("size", [1, 7, 100, 5000])
def test_long_element_fails_alone(size):
    text = b'[1, "' + b"x" * 3000 + b'", {"b": "' + b"y" * 90 + b'"}, 3]'
    found = entries(text, size, record_bytes_max=200, block_bytes_max=64)
    assert [position.record for position, _ in found] == [0, 1, 2, 3]
    assert [raw for _, raw in found if isinstance(raw, bytes)] == [b"1", b'{"b": "' + b"y" * 90 + b'"}', b"3"]
    (failure,) = [raw for _, raw in found if isinstance(raw, Failure)]
    assert (failure.why, failure.raw) == ("longer than record_bytes_max=200", b'"' + b"x" * 199)


@for_each("size", [1, 100])
def test_text_after_the_array_is_one_failure(size):
    text = b"[1]\n [2] [3]"
    found = entries(text, size)
    assert [raw for _, raw in found if isinstance(raw, bytes)] == [b"1"]
    (failure,) = [raw for _, raw in found if isinstance(raw, Failure)]
    assert (failure.kind, failure.position.byte, failure.position.line) == (FailureKind.OBJECT, 5, 2)


def test_text_that_is_no_array_is_one_failure():
    for size in (1, 100):
        (one,) = [raw for _, raw in entries(b' {"a": 1}', size)]
        assert isinstance(one, Failure)
        assert (one.kind, one.why) == (
            FailureKind.OBJECT,
            "not a JSON array: it begins with '{', not with a bracket",
        )


@for_each(
    ("text", "records"), [(b"", 0), (b"  ", 0), (b"[", 0), (b"[1, 2", 1), (b'[1, "]', 1), (b"[1,2,[3]", 2)]
)
def test_array_without_an_end_costs_the_rest(text, records):
    found: list[bytes] = []
    with pytest.raises(TruncatedError, match=r"array|empty"):
        found.extend(
            record
            for block in JsonArrayFormat().blocks(cut(text, 2), Position(URI))
            for record in block.texts()
        )
    assert len(found) == records


def test_long_array_is_not_held_in_memory():
    element = b'{"text": "' + b"x" * 10_000 + b'"}'

    def chunks():
        yield b"["
        for _ in range(2000):
            yield element + b","
        yield element + b"]"

    tracemalloc.start()
    try:
        count = sum(len(block) for block in JsonArrayFormat().blocks(chunks(), Position(URI)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert count == 2001
    assert peak < 12 << 20
