"""Tests of JSON decoding: a bad record fails alone."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cases import for_each
from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError
from headrace.formats.json_decode import JsonDecoder, JsonField
from headrace.formats.json_path import compile_path
from headrace.formats.line import JsonLinesFormat
from headrace.formats.matrix import orjson_flat_numbers

ENGINES = {"simdjson": None, "plain": orjson_flat_numbers, "record by record": lambda text, kind: None}


def block_of(*lines: str | bytes) -> Block:
    data = b"".join((line.encode() if isinstance(line, str) else line) + b"\n" for line in lines)
    (block,) = JsonLinesFormat().blocks([data], Position("o"))
    return block


def decoded_rows(got, block) -> list[int]:
    return list(range(len(block))) if got.rows is None else got.rows.tolist()


NUMBERS = st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers(-(2**63), 2**64 - 1))
LINES = st.one_of(
    st.lists(NUMBERS, min_size=2, max_size=2).map(json.dumps),
    st.lists(NUMBERS, min_size=2, max_size=2).map(json.dumps),
    st.sampled_from(
        [
            "[1",
            "2]",
            "1,2",
            "[1],[2]",
            "[[1,2]]",
            "[]",
            "[1,]",
            "[1 2]",
            "[true,1]",
            "[null,1]",
            '["1",2]',
            "{}",
            "[+1,2]",
            "[01,2]",
            "[1,2,3]",
            " [1, 2] ",
            "[1,\t2]",
            "x",
            '"[1,2]"',
            "[1e400,1]",
            "[-0,1]",
            "[1e-0,1]",
            "]1,2[",
            "[nan,1]",
            "[1_0,2]",
            "[.5,1]",
        ]
    ),
)


@for_each("engine", ENGINES)
@given(st.lists(LINES, min_size=1, max_size=12))
@example(["[1,2]", "[[1", "2]]", "[1],[2]"])
@example(["[1,2]]", "[3,4]"])
@example(["[[1,2]", "[3,4]"])
@example(["[9007199791611905, 16777217]"])
def test_every_parser_decodes_number_arrays_alike(engine, lines):
    """Rows, failures and values equal those of the json module."""
    block = block_of(*lines)
    decoder = JsonDecoder({"x": JsonField(shape=(2,))}, flat_numbers=ENGINES[engine])
    got = decoder.decode(block)
    wanted = {}
    for index, line in enumerate(lines):
        try:
            value = json.loads(line, parse_constant=lambda name: pytest.fail(name) if name != "NaN" else None)
        except ValueError:
            continue
        if not (isinstance(value, list) and len(value) == 2):
            continue
        if all(isinstance(v, (int, float)) and not np.isinf(float(v)) for v in value):
            with np.errstate(over="ignore"):
                wanted[index] = [np.float32(float(v)) for v in value]
    assert decoded_rows(got, block) == list(wanted)
    assert [f.position.record for f in got.failures] == sorted(set(range(len(lines))) - set(wanted))
    assert got.tensors["x"].shape == (len(wanted), 2)
    assert got.tensors["x"].tolist() == [[float(v) for v in row] for row in wanted.values()]


JSON_VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 300), st.floats(-2, 2), st.text(max_size=2)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.lists(
        st.one_of(JSON_VALUES, st.fixed_dictionaries({"a": st.integers(0, 255), "b": st.text(max_size=2)})),
        min_size=1,
        max_size=8,
    )
)
def test_block_decodes_as_its_records_do_alone(values):
    fields = {"n": JsonField("a", "uint8", ()), "t": JsonField("b", "text", ())}
    lines = [json.dumps(v) for v in values]
    block = block_of(*lines)
    got = JsonDecoder(fields).decode(block)
    alone = [JsonDecoder(fields).decode(block_of(line)) for line in lines]
    assert decoded_rows(got, block) == [i for i, one in enumerate(alone) if not one.failures]
    assert [f.why for f in got.failures] == [f.why for one in alone for f in one.failures]
    assert [f.raw for f in got.failures] == [lines[i].encode() for i, one in enumerate(alone) if one.failures]
    for name in fields:
        assert got.tensors[name].tolist() == [v for one in alone for v in one.tensors[name].tolist()]


def test_fields_by_name_dotted_name_and_nested_lists():
    fields = {
        "image": JsonField("image"),
        "age": JsonField("user.age", "int32"),
        "name": JsonField("user.name", "text"),
        "tags": JsonField("tags", "text", (2,)),
        "ok": JsonField("ok", bool),
    }
    line = '{"image": [[1,2,3],[4,5.5,6]], "user": {"age": 7, "name": "é"}, "tags": ["a","b"], "ok": true}'
    got = JsonDecoder(fields).decode(block_of(line, line))
    assert got.rows is None
    assert got.failures == ()
    assert {k: (v.shape, v.dtype) for k, v in got.tensors.items()} == {
        "image": ((2, 2, 3), np.float32),
        "age": ((2,), np.int32),
        "name": ((2,), object),
        "tags": ((2, 2), object),
        "ok": ((2,), bool),
    }
    assert got.tensors["image"][1].tolist() == [[1, 2, 3], [4, 5.5, 6]]
    assert got.tensors["tags"][0].tolist() == ["a", "b"]


def test_failures_hold_kind_field_and_found_value():
    got = JsonDecoder({"v": JsonField("u.v", shape=(2,))}).decode(
        block_of(
            '{"u": {"v": [1, 2]}}',
            "{",
            '{"u": {"w": 1, "x": 2}}',
            '{"u": 5}',
            "[1]",
            '{"u": {"v": "abc"}}',
            '{"u": {"v": [1, 2, 3]}}',
            '{"u": {"v": [[1], [2, 3]]}}',
            '{"u": {"v": [1, "2"]}}',
            b'{"u": "\xff"}',
        )
    )
    assert got.rows.tolist() == [0]
    whys = [f.why for f in got.failures]
    assert whys[0].startswith("not JSON: ")
    assert whys[1:8] == [
        'field "u.v" is missing: field "u" has "w", "x"',
        'field "u" is not an object with member "v": 5',
        'the record is not an object with member "u": [1]',
        'field "u.v" is not a number: "abc"',
        'field "u.v" has 3 values, 2 values expected',
        'field "u.v" is not an array with nested arrays of one shape',
        'field "u.v" is not a number: [1,"2"]',
    ]
    kinds = [f.kind for f in got.failures]
    assert kinds == [FailureKind.FORMAT, *[FailureKind.DECODE] * 7, FailureKind.FORMAT]
    assert [f.position.line for f in got.failures] == list(range(2, 11))


def test_first_decoded_row_fixes_the_unknown_shape():
    decoder = JsonDecoder({"x": JsonField()})
    got = decoder.decode(block_of('["a"]', "[1,2]", "[3]", "[[4,5]]"))
    assert got.tensors["x"].tolist() == [[1, 2]]
    assert decoder.decode(block_of("[1,2]", "[3,4]")).failures == ()
    assert len(decoder.decode(block_of("[1,2,3]", "[3,4,5]")).failures) == 2
    scalars = JsonDecoder({"x": JsonField()})
    assert scalars.decode(block_of("1", "2.5")).tensors["x"].tolist() == [1, 2.5]
    assert len(scalars.decode(block_of("[1]", "[2]")).failures) == 2


def test_integers_are_exact_or_fail():
    block = block_of("1", "1.0", "300", "-1", "true", "18446744073709551615", "18446744073709551616", '"1"')
    for dtype, rows in (("uint8", [0, 4]), ("int64", [0, 2, 3, 4]), ("uint64", [0, 2, 4, 5]), ("bool", [4])):
        got = JsonDecoder({"x": JsonField(dtype=dtype)}).decode(block)
        assert got.rows.tolist() == rows
        assert got.tensors["x"].dtype == np.dtype(dtype)


def test_long_string_does_not_use_its_length_for_every_row():
    """The type is checked before numpy sees the string."""
    import tracemalloc

    block = block_of(*["1"] * 1000, json.dumps("x" * 200_000))
    tracemalloc.start()
    got = JsonDecoder({"x": JsonField()}).decode(block)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(got.failures) == 1
    assert peak < 20_000_000


def test_nesting_deeper_than_numpy_axes_is_a_failure():
    got = JsonDecoder({"x": JsonField()}).decode(block_of("1", "[" * 100 + "]" * 100, "[" * 5000))
    assert got.rows.tolist() == [0]
    assert len(got.failures) == 2


def test_invalid_settings_are_rejected():
    with pytest.raises(ConfigError):
        JsonDecoder({})
    with pytest.raises(ConfigError):
        JsonDecoder({"x": JsonField(dtype="datetime64[s]")})


@for_each("depth", [70, 300, 1000])
@for_each("leaf", ["1", '"a"', "{}"])
@for_each("path", [None, "x", "x.y"])
def test_deeply_nested_record_fails_alone(path, leaf, depth):
    """Deeper than arrays have axes, than messages can show, or than JSON parsers read."""
    deep = "[" * depth + leaf + "]" * depth
    block = block_of(deep if path is None else f'{{"x":{deep}}}', "7" if path is None else '{"x":7}')
    got = JsonDecoder({"x": JsonField(None if path is None else "x", shape=())}).decode(block)
    assert (decoded_rows(got, block), got.tensors["x"].tolist()) == ([1], [7])
    inner = JsonDecoder({"x": JsonField("x.y", shape=())}).decode(block)
    assert [len(f.why) < 200 for f in inner.failures] == [True, True]


def test_selected_value_is_decoded():
    """Flat arrays are not rows if a selection applies."""
    block = block_of('{"r":{"x":1}}', "oops", '{"q":2}', '{"r":{"y":2}}', '{"r":{"x":3}}')
    decoded = JsonDecoder({"x": JsonField("x")}, select=compile_path("$.r").value).decode(block)
    assert (decoded.tensors["x"].tolist(), decoded_rows(decoded, block)) == ([1, 3], [0, 4])
    assert [(f.kind, f.position.record, f.why) for f in decoded.failures[1:]] == [
        (FailureKind.DECODE, 2, '"r" is missing; the value has "q"'),
        (FailureKind.DECODE, 3, 'field "x" is missing: the record has "y"'),
    ]
    assert (decoded.failures[0].kind, decoded.failures[0].position.record) == (FailureKind.FORMAT, 1)
    flat = block_of("[9,1,2]", "[9,3,4]")
    decoded = JsonDecoder({"x": JsonField()}, select=compile_path("$[1:]").value).decode(flat)
    assert decoded.tensors["x"].tolist() == [[1, 2], [3, 4]]
