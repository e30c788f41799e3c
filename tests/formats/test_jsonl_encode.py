"""Tests of JSON Lines output: every line is a JSON object, and no record's bytes are lost."""

import json
from base64 import b64decode

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from cases import for_each
from headrace.core.block import Position
from headrace.core.errors import ConfigError, ModelContractError
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import output_columns
from headrace.formats.json_encode import JsonLinesEncoder
from headrace.formats.line import JsonFormat, JsonLinesFormat


def selections_of(text):
    """Return selections of every block that the line format cuts."""
    return [BlockSelection(block, 0, len(block)) for block in JsonLinesFormat().blocks([text], Position())]


def encode_part(selections, outputs, **settings):
    """Return a whole part."""
    encoder = JsonLinesEncoder(output_columns(outputs), **settings)
    return encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()


def test_outputs_of_every_shape_and_type():
    """Arrays nest by their shape, including empty ones."""
    outputs = {
        "100%": np.array([0.1, 2.0], np.float32),
        "v": np.arange(4).reshape(2, 2),
        "m": np.arange(8).reshape(2, 2, 2),
        "ok": np.array([True, False]),
        "none": np.empty((2, 0)),
        "hollow": np.empty((2, 2, 0)),
        "flat": np.empty((2, 0, 2)),
        "s": np.array(['a"', b"\xc3\xa4"], object),
        "t": np.array([["x", "y"], ["z", ""]]),
    }
    assert encode_part(selections_of(b"1\n2\n"), outputs).splitlines() == [
        (
            b'{"100%":0.1,"v":[0,1],"m":[[0,1],[2,3]],"ok":true,"none":[],"hollow":[[],[]],'
            b'"flat":[],"s":"a\\"","t":["x","y"]}'
        ),
        (
            b'{"100%":2.0,"v":[2,3],"m":[[4,5],[6,7]],"ok":false,"none":[],"hollow":[[],[]],'
            b'"flat":[],"s":"\xc3\xa4","t":["z",""]}'
        ),
    ]


def test_single_output_is_an_object():
    """A second output later does not change readers."""
    assert (
        encode_part(selections_of(b"1\n2\n"), {"y": np.array([[0.5, 1], [2, 3]])})
        == b'{"y":[0.5,1.0]}\n{"y":[2.0,3.0]}\n'
    )


def test_nonfinite_numbers_are_null():
    outputs = {"y": np.array([np.nan, 1.0]), "v": np.array([[1, np.inf], [-np.inf, 2]])}
    assert (
        encode_part(selections_of(b"1\n2\n"), outputs)
        == b'{"y":null,"v":[1.0,null]}\n{"y":1.0,"v":[null,2.0]}\n'
    )


def test_text_elements_of_any_type():
    """Bytes that are not text are marked; surrogates and huge integers are kept."""
    values = np.array([b"\xff", None, "\ud800", 2**70, {"k": np.float32(0.5)}, np.arange(2)], object)
    lines = encode_part(selections_of(b"1\n2\n3\n4\n5\n6\n"), {"s": values}).splitlines()
    read = [json.loads(line)["s"] for line in lines]
    assert read == [{"base64": "/w=="}, None, "\ud800", 2**70, {"k": 0.5}, [0, 1]]


def test_json_records_are_spliced_in_unchanged():
    """Spacing, key order, digits and repeated keys stay."""
    text = b'{"b": 1.50,  "a":"%"}\n[1, 2]\r\n"x"\n'
    out = encode_part(
        selections_of(text), {"y": np.array([1, 2, 3])}, join="input", input_is_json=lambda _: True
    )
    assert out == b'{"input":{"b": 1.50,  "a":"%"},"y":1}\n{"input":[1, 2],"y":2}\n{"input":"x","y":3}\n'


@for_each("line_end", [b"\n", b"\r\n", b"\n\n"])
@for_each(
    "record", [b"plain", b'say "hi", 50%', b"back\\slash \\n", b"tab\tand\x01", "größe ✓".encode(), b"\\"]
)
def test_text_records_become_strings(record, line_end):
    """On every path, the string reads back to the record."""
    text = line_end.join([b"first", record, b"last"])
    out = encode_part(selections_of(text), {"y": np.arange(3)}, join="input")
    read = [orjson.loads(line) for line in out.splitlines()]
    assert read == [{"input": t, "y": i} for i, t in enumerate(["first", record.decode(), "last"])]


def test_record_that_is_not_utf8_is_kept_as_base64():
    out = encode_part(selections_of(b"a\n\xff\xfe\nc\n"), {"y": np.arange(3)}, join="input")
    first, second, third = (orjson.loads(line) for line in out.splitlines())
    assert (first["input"], third["input"]) == ("a", "c")
    assert b64decode(second["input_base64"]) == b"\xff\xfe"
    assert "input" not in second


def test_selections_of_several_blocks_with_missing_rows():
    """Row i of the outputs belongs to the i-th record of all selections."""
    (selection,) = selections_of(b"1\n2\n3\n")
    selections = [
        BlockSelection(selection.block, 0, 3, np.array([0, 2])),
        BlockSelection(selection.block, 1, 2),
    ]
    out = encode_part(selections, {"y": np.arange(3)}, join="input", input_is_json=lambda _: True)
    assert out == b'{"input":1,"y":0}\n{"input":3,"y":1}\n{"input":2,"y":2}\n'


def test_json_is_decided_per_block():
    """In a source of mixed formats, other records become strings."""
    selections = [*selections_of(b'{"a": 1}\n'), *selections_of(b"1,x\n2,y\n"), *selections_of(b"[7]\n")]
    starts = (b"{", b"[")
    out = encode_part(
        selections,
        {"y": np.arange(4)},
        join="input",
        input_is_json=lambda block: block.data.startswith(starts),
    )
    inputs = [json.loads(line)["input"] for line in out.splitlines()]
    assert inputs == [{"a": 1}, "1,x", "2,y", [7]]


def test_empty_outputs_and_empty_input():
    assert encode_part(selections_of(b"a\n"), {}, join="input") == b'{"input":"a"}\n'
    assert encode_part(selections_of(b"a\nb\n"), {}) == b"{}\n{}\n"
    assert encode_part([], {"y": np.empty(0)}) == b""


@for_each("name", ["input", "input_base64"])
def test_output_with_the_name_of_the_record_is_rejected(name):
    """Readers would keep only one of two equal keys."""
    columns = output_columns({name: np.zeros(1)})
    with pytest.raises(ConfigError, match=f"output '{name}' has the reserved name of the joined record"):
        JsonLinesEncoder(columns, join="input")
    JsonLinesEncoder(columns)


def test_outputs_that_change_their_names_are_rejected():
    encoder = JsonLinesEncoder(output_columns({"y": np.zeros(1)}))
    with pytest.raises(ModelContractError, match="started with y"):
        encoder.encode(selections_of(b"1\n"), {"z": np.zeros(1)})


arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.bool_]),
    hnp.array_shapes(min_dims=1, max_dims=4, max_side=3),
    elements={"allow_nan": False, "allow_infinity": False},
)


@given(arrays, st.text(max_size=5), st.data())
def test_json_reads_the_output_back(array, name, data):
    """Every value of every shape, under any name, beside any record."""
    record = st.binary(min_size=1, max_size=6).filter(
        lambda raw: raw.strip(b"\r\n") == raw and b"\n" not in raw
    )
    records = data.draw(st.lists(record, min_size=len(array), max_size=len(array)))
    selections = selections_of(b"#" * 4096 + b"\n" + b"\n".join(records))
    selections[0] = BlockSelection(selections[0].block, 1, len(selections[0]))
    outputs = {f"_{name}": array, "k": np.arange(len(array))}
    lines = [json.loads(line) for line in encode_part(selections, outputs, join="input").splitlines()]
    read = [line["input"].encode() if "input" in line else b64decode(line["input_base64"]) for line in lines]
    assert read == records
    assert [line["k"] for line in lines] == list(range(len(array)))
    np.testing.assert_array_equal(np.array([line[f"_{name}"] for line in lines], array.dtype), array)


@given(st.recursive(st.text(max_size=4), lambda inner: st.lists(inner, max_size=3), max_leaves=8))
def test_json_on_several_lines_is_joined_on_one_line(value):
    text = json.dumps(value, indent=2).replace("\n", "\r\n").encode()
    (block,) = JsonFormat().blocks([text], Position())
    line = encode_part(
        [BlockSelection(block, 0, 1)], {"y": np.array([1])}, join="input", input_is_json=lambda _: True
    )
    assert line.count(b"\n") == 1
    assert orjson.loads(line) == {"input": value, "y": 1}
