"""Tests of JSON predictions, joined and filtered as by a slow reader, with unchanged bytes."""

import json

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import levels
from cases import for_each
from formats.json_texts import texts
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, DataError, ModelContractError
from headrace.formats import json_encode
from headrace.formats.contract import BlockSelection
from headrace.formats.encode import output_columns
from headrace.formats.json_encode import JsonLinesEncoder, TransformJsonEncoder
from headrace.formats.json_path import compile_path
from headrace.formats.line import JsonLinesFormat


def selections_of(text):
    return [
        BlockSelection(block, 0, len(block))
        for block in JsonLinesFormat().blocks([text], Position("o.jsonl"))
    ]


def document(text):
    """Return one whole object as one record."""
    return [BlockSelection(Block(Position("o.json"), text, np.array([0]), np.array([len(text)])), 0, 1)]


def encode_part(selections, outputs, path="$", **options):
    """Return a whole part."""
    encoder = TransformJsonEncoder(output_columns(outputs), output_filter=compile_path(path), **options)
    return encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()


AS_WRITTEN = {"parse_int": lambda digits: f"#{digits}", "parse_float": lambda digits: f"#{digits}"}


def reference_join(record, prediction):
    """Return a parsed record and its prediction as one object."""
    if not isinstance(record, dict):
        return {"SageMakerInput": record, "SageMakerOutput": prediction}
    return {k: v for k, v in record.items() if k != "SageMakerOutput"} | {"SageMakerOutput": prediction}


flat = st.sampled_from(['{"a":1.10}', '{"a":[1,2],"b":"é"}', '{"b":-0 , "a":"%d"}', '{"a":"x\\u0041"}'])
odd = st.sampled_from(
    [
        "{}",
        "{ }",
        ' {"a":1}',
        '{"a":1} ',
        '{ "a":1}',
        '{"SageMakerOutput":5}',
        '{"a":1,"SageMakerOutput":{"y":2},"b":[1],"SageMaker\\u004futput":3}',
        '{"a":"SageMakerOutput"}',
        '{"a":{"SageMakerOutput":1}}',
        '{"a":"SageMakerOutput\\""}',
        "[1.10,2]",
        "7",
        '"{"',
    ]
)
one_line = texts.map(lambda text: text.replace("\n", " ").replace("\r", " "))
PATHS = [
    "$",
    "$['a','SageMakerOutput']",
    "$.a",
    "$.SageMakerOutput",
    "$.SageMakerOutput.y",
    "$.*",
    "$['SageMakerOutput','SageMakerInput']",
]


@settings(max_examples=levels.examples(6))
@given(
    st.lists(flat, min_size=1, max_size=5)
    | st.lists(st.sampled_from(["[1.10]", "2", '"x"']), min_size=1, max_size=5)
    | st.lists(flat | odd | one_line, min_size=1, max_size=5),
    st.sampled_from(["\n", "\n", "\r\n", "\n\n"]),
    st.sampled_from(PATHS),
    st.sampled_from([b"\n", b""]),
)
def test_output_equals_the_reference_join_and_selection(records, line_end, path, separator):
    """Objects, repeated and escaped keys, blanks and other values are included."""
    records = [record for record in records if record.strip()]
    selections = selections_of((line_end.join(records) + line_end).encode())
    y = np.arange(len(records)) + 0.5
    expected, lacking = [], False
    for record, value in zip(records, y, strict=True):
        whole = reference_join(json.loads(record, **AS_WRITTEN), {"y": f"#{value}"})
        try:
            expected.append(compile_path(path).value(whole))
        except ValueError:
            lacking = True
            break
    if lacking:
        event("lacking")
        with pytest.raises(DataError, match=f"o.jsonl, record {len(expected)}, line .* is missing"):
            encode_part(selections, {"y": y}, path, join="input", separator=separator)
        return
    text = encode_part(selections, {"y": y}, path, join="input", separator=separator)
    if separator:
        assert text.endswith(b"\n")
        written = [json.loads(line, **AS_WRITTEN) for line in text.splitlines()]
        assert [json.dumps(one) for one in written] == [json.dumps(one) for one in expected]
    else:
        assert text.replace(b"\n", b"") == encode_part(selections, {"y": y}, path, join="input").replace(
            b"\n", b""
        )
    if path == "$" and separator:
        for record, line, value in zip(records, text.splitlines(), y, strict=True):
            if "SageMaker" not in record and "{}" not in record and record[0] == "{" and record[-1] == "}":
                comma = "," if record[1:-1].strip() else ""
                assert line.decode() == f'{record[:-1]}{comma}"SageMakerOutput":{{"y":{value}}}}}'


@for_each("line_end", [b"\n", b"\r\n"])
@for_each(
    ("records", "expected"),
    [
        (
            [b'{"id":1,"x":[1.10, 2]}', b'{"id":"%s"}'],
            (
                b'{"id":1,"x":[1.10, 2],"SageMakerOutput":{"y":0,"z":[5]}}\n'
                b'{"id":"%s","SageMakerOutput":{"y":1,"z":[6]}}\n'
            ),
        ),
        (
            [b"[1,2]", b'"{}"'],
            (
                b'{"SageMakerInput":[1,2],"SageMakerOutput":{"y":0,"z":[5]}}\n'
                b'{"SageMakerInput":"{}","SageMakerOutput":{"y":1,"z":[6]}}\n'
            ),
        ),
    ],
)
def test_plain_records_are_joined_as_one_text(line_end, records, expected, monkeypatch):
    """No record is cut out of its block."""
    monkeypatch.setattr(json_encode, "raw_records", None)
    selections = selections_of(line_end.join(records) + line_end)
    outputs = {"y": np.arange(2), "z": np.array([[5], [6]])}
    assert encode_part(selections, outputs, join="input") == expected
    assert encode_part(selections, outputs, join="input", separator=b"") == expected.replace(b"\n", b"")


def test_members_with_the_output_name_are_replaced_at_the_end():
    """All such members are dropped, even with escapes. The others keep bytes and order."""
    text = b'{"SageMakerOutput": 1, "b": 2.0 ,"SageMaker\\u004Futput":3,"a":"SageMakerOutput"}\n'
    assert encode_part(selections_of(text), {"y": np.array([9])}, join="input") == (
        b'{"b": 2.0,"a":"SageMakerOutput","SageMakerOutput":{"y":9}}\n'
    )
    assert encode_part(selections_of(b'{"SageMakerOutput":1}\n'), {"y": np.array([9])}, join="input") == (
        b'{"SageMakerOutput":{"y":9}}\n'
    )


@for_each(
    ("record", "expected"),
    [
        (b'{"SageMaker\\u004Futput":1,"a":2}', b'{"a":2,"SageMakerOutput":{"y":9}}'),
        (b' {"a":1}', b'{"a":1,"SageMakerOutput":{"y":9}}'),
        (b'\t{"a":1} ', b'{"a":1,"SageMakerOutput":{"y":9}}'),
        (b"{ }", b'{ "SageMakerOutput":{"y":9}}'),
        (b"[1] ", b'{"SageMakerInput":[1],"SageMakerOutput":{"y":9}}'),
        (b" 1", b'{"SageMakerInput":1,"SageMakerOutput":{"y":9}}'),
    ],
)
def test_records_that_only_look_plain_are_joined_correctly(record, expected):
    """Each stands alone, so that no other record selects the slow path."""
    assert encode_part(selections_of(record + b"\n"), {"y": np.array([9])}, join="input") == expected + b"\n"


PRETTY = b'\n{\r\n  "id": 7,\n  "x": [1,\n 2]\n}\n'


def test_document_is_put_on_one_line_before_a_newline_separator():
    outputs = {"y": np.array([9])}
    line = encode_part(document(PRETTY), outputs, join="input")
    assert line == b'{    "id": 7,   "x": [1,  2] ,"SageMakerOutput":{"y":9}}\n'
    kept = encode_part(document(PRETTY), outputs, join="input", separator=b"")
    assert kept == b'{\r\n  "id": 7,\n  "x": [1,\n 2]\n,"SageMakerOutput":{"y":9}}'
    assert json.loads(line) == json.loads(kept)
    assert encode_part(document(PRETTY), outputs, "$.x", join="input") == b"[1,  2]\n"


OUTPUTS = {
    "y": np.array([0.5, 1.0]),
    "p": np.array([[[1, 2]], [[3, 4]]]),
    "t": np.array(["é\n", None], object),
}


@for_each(
    ("path", "expected"),
    [
        ("$", '{"y":0.5,"p":[[1,2]],"t":"é\\n"}\n{"y":1.0,"p":[[3,4]],"t":null}\n'),
        ("$.y", "0.5\n1.0\n"),
        ("$.p", "[[1,2]]\n[[3,4]]\n"),
        ("$['p'][0]", "[1,2]\n[3,4]\n"),
        ("$.p[0][-1]", "2\n4\n"),
        ("$.t", '"é\\n"\nnull\n'),
        ("$['t','y']", '{"t":"é\\n","y":0.5}\n{"t":null,"y":1.0}\n'),
        ("$.*", '[0.5,[[1,2]],"é\\n"]\n[1.0,[[3,4]],null]\n'),
    ],
)
def test_filter_of_predictions_writes_only_the_selected_part(path, expected):
    """This includes joined predictions if the filter selects nothing else."""
    selections = selections_of(b'{"id":1}\n[2]\n')
    assert encode_part(selections, OUTPUTS, path).decode() == expected
    inside = "$.SageMakerOutput" + path[1:]
    assert encode_part(selections, OUTPUTS, inside, join="input").decode() == expected
    assert encode_part(selections, OUTPUTS, path, separator=b"").decode() == expected.replace("\n", "")


def test_predictions_equal_those_of_json_lines():
    outputs = {"n": np.array([np.nan, np.inf]), "none": np.empty((2, 0)), '"%': np.array([True, False])}
    selections = selections_of(b"1\n2\n")
    assert encode_part(selections, outputs) == JsonLinesEncoder(output_columns(outputs)).encode(
        selections, outputs
    )


def test_records_that_are_not_json_are_strings():
    selections = selections_of(b'a,"b"\n{"x":1}\n\xff\n')
    out = encode_part(
        selections, {"y": np.arange(3)}, "$.SageMakerInput", join="input", input_is_json=lambda _: False
    )
    assert out == b'"a,\\"b\\""\n"{\\"x\\":1}"\n{"base64":"/w=="}\n'


def test_selections_of_several_blocks_with_missing_rows():
    text = b'{"i":0}\n[1]\n{"i":2}\n{"i":3}\n'
    (whole,) = selections_of(text)
    selections = [
        BlockSelection(whole.block, 0, 4, np.array([0, 2])),
        BlockSelection(whole.block, 3, 4),
        BlockSelection(whole.block, 1, 2),
    ]
    out = encode_part(selections, {"y": np.arange(4)}, "$", join="input")
    assert out == (
        b'{"i":0,"SageMakerOutput":{"y":0}}\n{"i":2,"SageMakerOutput":{"y":1}}\n'
        b'{"i":3,"SageMakerOutput":{"y":2}}\n{"SageMakerInput":[1],"SageMakerOutput":{"y":3}}\n'
    )
    with pytest.raises(DataError, match=r'record 2, line 3, byte 12: .*"j" is missing; the value has "i"'):
        encode_part(
            [BlockSelection(whole.block, 0, 4, np.array([2]))], {"y": np.arange(1)}, "$.j", join="input"
        )


def test_filter_of_an_unknown_output_is_rejected_at_once():
    with pytest.raises(ConfigError, match='selects "q"; the outputs of the model are: y'):
        encode_part([], {"y": np.arange(0)}, "$.q")
    with pytest.raises(ConfigError, match='selects "q"; the outputs of the model are: y'):
        encode_part([], {"y": np.arange(0)}, "$.SageMakerOutput['y','q']", join="input")


@for_each(
    ("path", "join"),
    [("$[0]", "none"), ("$[0,-1]", "input"), ("$[1:]", "input"), ("$.SageMakerOutput[0]", "input")],
)
def test_filters_by_index_are_rejected_at_once(path, join):
    with pytest.raises(ConfigError, match="selects elements of an array"):
        encode_part([], {"y": np.arange(0)}, path, join=join)


def test_invalid_settings_and_outputs_are_rejected():
    with pytest.raises(ConfigError, match="separator must be"):
        encode_part([], {}, separator=b",")
    with pytest.raises(ConfigError, match="join must be"):
        encode_part([], {}, join="output")
    encoder = TransformJsonEncoder(output_columns({"y": np.arange(1)}), output_filter=compile_path("$"))
    with pytest.raises(ModelContractError):
        encoder.encode(selections_of(b"1\n"), {"z": np.arange(1)})
    assert encoder.encode([], {"y": np.arange(0)}) == b""


def test_invalid_object_is_rejected_if_the_filter_reads_it():
    with pytest.raises(DataError, match=r"record 0, line 1, byte 0: .*not JSON"):
        encode_part(selections_of(b'{"a":1,}\n'), {"y": np.arange(1)}, "$.a", join="input")
