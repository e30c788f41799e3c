"""Predictions as JSON: joined and filtered as a slow reading of each record has it, in the record's own bytes."""

import json

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from formats.json_texts import texts
from headrace.core.block import Block, Position
from headrace.core.errors import ConfigError, DataError, ModelContractError
from headrace.formats import transform_json
from headrace.formats.contract import Piece
from headrace.formats.encode import output_columns
from headrace.formats.json_path import compile_path
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.jsonl_encode import JsonLinesEncoder
from headrace.formats.transform_json import TransformJsonEncoder


def pieces_of(text):
    return [Piece(block, 0, len(block)) for block in JsonLinesFormat().blocks([text], Position("o.jsonl"))]


def document(text):
    """One whole object as one record."""
    return [Piece(Block(Position("o.json"), text, np.array([0]), np.array([len(text)])), 0, 1)]


def encoded(pieces, outputs, path="$", **options):
    """A whole part."""
    encoder = TransformJsonEncoder(output_columns(outputs), output_filter=compile_path(path), **options)
    return encoder.begin() + encoder.encode(pieces, outputs) + encoder.finish()


AS_WRITTEN = {"parse_int": lambda digits: f"#{digits}", "parse_float": lambda digits: f"#{digits}"}


def slowly_joined(record, prediction):
    """A parsed record and its prediction as one object."""
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


@settings(deadline=None, max_examples=600)
@given(
    st.lists(flat, min_size=1, max_size=5)
    | st.lists(st.sampled_from(["[1.10]", "2", '"x"']), min_size=1, max_size=5)
    | st.lists(flat | odd | one_line, min_size=1, max_size=5),
    st.sampled_from(["\n", "\n", "\r\n", "\n\n"]),
    st.sampled_from(PATHS),
    st.sampled_from([b"\n", b""]),
)
def test_what_is_written_is_what_a_slow_reading_joins_and_selects(records, line_end, path, separator):
    """Objects, doubled and escaped keys, blanks, what is no object; whichever way is taken."""
    records = [record for record in records if record.strip()]
    pieces = pieces_of((line_end.join(records) + line_end).encode())
    y = np.arange(len(records)) + 0.5
    expected, lacking = [], False
    for record, value in zip(records, y, strict=True):
        whole = slowly_joined(json.loads(record, **AS_WRITTEN), {"y": f"#{value}"})
        try:
            expected.append(compile_path(path).value(whole))
        except ValueError:
            lacking = True
            break
    if lacking:
        event("lacking")
        with pytest.raises(DataError, match=f"o.jsonl, record {len(expected)}, line .* is not there"):
            encoded(pieces, {"y": y}, path, join="input", separator=separator)
        return
    text = encoded(pieces, {"y": y}, path, join="input", separator=separator)
    if separator:
        assert text.endswith(b"\n")
        written = [json.loads(line, **AS_WRITTEN) for line in text.splitlines()]
        assert [json.dumps(one) for one in written] == [json.dumps(one) for one in expected]
    else:
        assert text.replace(b"\n", b"") == encoded(pieces, {"y": y}, path, join="input").replace(b"\n", b"")
    if path == "$" and separator:
        for record, line, value in zip(records, text.splitlines(), y, strict=True):
            if "SageMaker" not in record and "{}" not in record and record[0] == "{" and record[-1] == "}":
                comma = "," if record[1:-1].strip() else ""
                assert line.decode() == f'{record[:-1]}{comma}"SageMakerOutput":{{"y":{value}}}}}'


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize(
    ("records", "expected"),
    [
        (
            [b'{"id":1,"x":[1.10, 2]}', b'{"id":"%s"}'],
            b'{"id":1,"x":[1.10, 2],"SageMakerOutput":{"y":0,"z":[5]}}\n{"id":"%s","SageMakerOutput":{"y":1,"z":[6]}}\n',
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
def test_plain_records_are_joined_all_at_once(line_end, records, expected, monkeypatch):
    """Objects or none: no record is cut out of its block."""
    monkeypatch.setattr(transform_json, "raw_records", None)
    pieces = pieces_of(line_end.join(records) + line_end)
    outputs = {"y": np.arange(2), "z": np.array([[5], [6]])}
    assert encoded(pieces, outputs, join="input") == expected
    assert encoded(pieces, outputs, join="input", separator=b"") == expected.replace(b"\n", b"")


def test_a_member_of_the_outputs_name_gives_way_at_the_end():
    """All that it has of that name, however written; the others keep their bytes and order."""
    text = b'{"SageMakerOutput": 1, "b": 2.0 ,"SageMaker\\u004Futput":3,"a":"SageMakerOutput"}\n'
    assert encoded(pieces_of(text), {"y": np.array([9])}, join="input") == (
        b'{"b": 2.0,"a":"SageMakerOutput","SageMakerOutput":{"y":9}}\n'
    )
    assert encoded(pieces_of(b'{"SageMakerOutput":1}\n'), {"y": np.array([9])}, join="input") == (
        b'{"SageMakerOutput":{"y":9}}\n'
    )


@pytest.mark.parametrize(
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
def test_records_that_look_plain_and_are_not(record, expected):
    """Each alone, so that no other sends it the slow way."""
    assert encoded(pieces_of(record + b"\n"), {"y": np.array([9])}, join="input") == expected + b"\n"


PRETTY = b'\n{\r\n  "id": 7,\n  "x": [1,\n 2]\n}\n'


def test_a_document_of_many_lines_becomes_one_before_a_newline():
    """Else it stays as it is."""
    outputs = {"y": np.array([9])}
    line = encoded(document(PRETTY), outputs, join="input")
    assert line == b'{    "id": 7,   "x": [1,  2] ,"SageMakerOutput":{"y":9}}\n'
    kept = encoded(document(PRETTY), outputs, join="input", separator=b"")
    assert kept == b'{\r\n  "id": 7,\n  "x": [1,\n 2]\n,"SageMakerOutput":{"y":9}}'
    assert json.loads(line) == json.loads(kept)
    assert encoded(document(PRETTY), outputs, "$.x", join="input") == b"[1,  2]\n"


OUTPUTS = {
    "y": np.array([0.5, 1.0]),
    "p": np.array([[[1, 2]], [[3, 4]]]),
    "t": np.array(["é\n", None], object),
}


@pytest.mark.parametrize(
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
def test_of_predictions_alone_only_what_is_kept_is_written(path, expected):
    """Also of joined ones, when the filter keeps nothing else."""
    pieces = pieces_of(b'{"id":1}\n[2]\n')
    assert encoded(pieces, OUTPUTS, path).decode() == expected
    inside = "$.SageMakerOutput" + path[1:]
    assert encoded(pieces, OUTPUTS, inside, join="input").decode() == expected
    assert encoded(pieces, OUTPUTS, path, separator=b"").decode() == expected.replace("\n", "")


def test_predictions_are_as_json_lines_have_them():
    """Whatever they are: the same encoder writes them."""
    outputs = {"n": np.array([np.nan, np.inf]), "none": np.empty((2, 0)), '"%': np.array([True, False])}
    pieces = pieces_of(b"1\n2\n")
    assert encoded(pieces, outputs) == JsonLinesEncoder(output_columns(outputs)).encode(pieces, outputs)


def test_records_that_are_not_json_are_strings():
    """What is not UTF-8 loses nothing."""
    pieces = pieces_of(b'a,"b"\n{"x":1}\n\xff\n')
    out = encoded(
        pieces, {"y": np.arange(3)}, "$.SageMakerInput", join="input", input_is_json=lambda _: False
    )
    assert out == b'"a,\\"b\\""\n"{\\"x\\":1}"\n{"base64":"/w=="}\n'


def test_some_rows_of_several_blocks():
    """Pieces as batches have them: cut anywhere, with records left out."""
    text = b'{"i":0}\n[1]\n{"i":2}\n{"i":3}\n'
    (whole,) = pieces_of(text)
    pieces = [Piece(whole.block, 0, 4, np.array([0, 2])), Piece(whole.block, 3, 4), Piece(whole.block, 1, 2)]
    out = encoded(pieces, {"y": np.arange(4)}, "$", join="input")
    assert out == (
        b'{"i":0,"SageMakerOutput":{"y":0}}\n{"i":2,"SageMakerOutput":{"y":1}}\n'
        b'{"i":3,"SageMakerOutput":{"y":2}}\n{"SageMakerInput":[1],"SageMakerOutput":{"y":3}}\n'
    )
    with pytest.raises(DataError, match=r'record 2, line 3, byte 12: .*"j" is not there; it has "i"'):
        encoded([Piece(whole.block, 0, 4, np.array([2]))], {"y": np.arange(1)}, "$.j", join="input")


def test_what_is_asked_for_must_be_an_output():
    """Said before the first record."""
    with pytest.raises(ConfigError, match='"q", which is none of the model\'s outputs: y'):
        encoded([], {"y": np.arange(0)}, "$.q")
    with pytest.raises(ConfigError, match='"q", which is none of the model\'s outputs: y'):
        encoded([], {"y": np.arange(0)}, "$.SageMakerOutput['y','q']", join="input")


@pytest.mark.parametrize(
    ("path", "join"),
    [("$[0]", "none"), ("$[0,-1]", "input"), ("$[1:]", "input"), ("$.SageMakerOutput[0]", "input")],
)
def test_csv_paths_are_refused(path, join):
    """Before the first record: what is written is always an object."""
    with pytest.raises(ConfigError, match="counts the elements of an array"):
        encoded([], {"y": np.arange(0)}, path, join=join)


def test_wrong_ways_to_be_made_and_used():
    """Each with words."""
    with pytest.raises(ConfigError, match="separator must be"):
        encoded([], {}, separator=b",")
    with pytest.raises(ConfigError, match="join must be"):
        encoded([], {}, join="output")
    encoder = TransformJsonEncoder(output_columns({"y": np.arange(1)}), output_filter=compile_path("$"))
    with pytest.raises(ModelContractError):
        encoder.encode(pieces_of(b"1\n"), {"z": np.arange(1)})
    assert encoder.encode([], {"y": np.arange(0)}) == b""


def test_a_broken_object_is_refused_where_it_must_be_taken_apart():
    """What is no JSON cannot have been predicted from; if it was, it is told."""
    with pytest.raises(DataError, match=r"record 0, line 1, byte 0: .*not JSON"):
        encoded(pieces_of(b'{"a":1,}\n'), {"y": np.arange(1)}, "$.a", join="input")
