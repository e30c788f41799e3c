"""Tests of the worked examples in SageMaker's documentation of joining predictions with records.

https://docs.aws.amazon.com/sagemaker/latest/dg/batch-transform-data-processing.html: filter, predict,
join, filter. The model returns the sum of its inputs, so the output shows the inputs.
"""

import numpy as np

from cases import for_each
from headrace.core.block import Block, Position
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.contract import BlockSelection
from headrace.formats.csv import CsvFormat
from headrace.formats.csv_encode import TransformCsvEncoder
from headrace.formats.encode import output_columns
from headrace.formats.json_encode import TransformJsonEncoder
from headrace.formats.json_path import compile_path
from headrace.formats.line import JsonLinesFormat
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions


def predict(blocks, input_filter, slice_end, output):
    """Return selections of the decoded records, and the sum of each record's inputs."""
    model = ModelMetadata("sum", inputs=(TensorSpec("x", "FP64", (-1, -1)),))
    mapper = Mapper(model, MappingOptions(input_filter=input_filter, slice_end=slice_end), ReadOptions())
    (block,) = blocks
    decoded = mapper.decode(block)
    assert not decoded.failures
    return [BlockSelection(block, 0, len(block))], {output: decoded.tensors["x"].sum(axis=1).astype(np.int64)}


def transform_csv(text, *, input_filter="$", join="none", output_filter="$", slice_end="exclusive"):
    """Return the content of the output object."""
    blocks = CsvFormat().blocks([text.encode()], Position("s3://b/in.csv"))
    selections, outputs = predict(blocks, input_filter, slice_end, "label")
    path = compile_path(output_filter, slice_end=slice_end)
    encoder = TransformCsvEncoder(output_columns(outputs), join=join, output_filter=path)
    return (encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()).decode()


def transform_json(
    text, *, input_filter="$", join="none", output_filter="$", separator=b"\n", output="label"
):
    """Return the content of the output object."""
    blocks = JsonLinesFormat().blocks([text.encode()], Position("s3://b/in.jsonl"))
    selections, outputs = predict(blocks, input_filter, "exclusive", output)
    path = compile_path(output_filter)
    encoder = TransformJsonEncoder(
        output_columns(outputs), join=join, output_filter=path, separator=separator
    )
    return (encoder.begin() + encoder.encode(selections, outputs) + encoder.finish()).decode()


FIVE_COLUMNS = "1000,1,2,3,4\n2000,5,6,7,8\n"


def test_output_only_inferences():
    """This is the default: nothing is joined."""
    assert transform_csv("1,2\n3,4\n") == "3\n7\n"
    assert transform_json("[1,2]\n[3,4]\n") == '{"label":3}\n{"label":7}\n'


def test_output_inferences_joined_with_input_data():
    assert transform_csv("1,2,3\n", join="input") == "1,2,3,6\n"
    joined = transform_json('{"x":[1,2]}\n', join="input", input_filter="$.x")
    assert joined == '{"x":[1,2],"SageMakerOutput":{"label":3}}\n'


def test_key_and_label():
    """As JSON Lines, and as a document without a separator."""
    line = '{"key":1,"SageMakerOutput":{"label":1}}'
    assert transform_json('{"key":1}\n', join="input", input_filter="$[*]") == line + "\n"
    assert transform_json('{"key":1}', join="input", input_filter="$.*", separator=b"") == line


def test_record_that_is_not_an_object_is_wrapped():
    assert (
        transform_json("[1,2.0]\n", join="input")
        == '{"SageMakerInput":[1,2.0],"SageMakerOutput":{"label":3}}\n'
    )


def test_id_column_is_excluded_from_the_input_and_joined():
    assert transform_csv(FIVE_COLUMNS, input_filter="$[1:]", join="input") == (
        "1000,1,2,3,4,10\n2000,5,6,7,8,26\n"
    )


@for_each("output_filter", ["$[0,-1]", "$[0,5:]", "$[0, 5:]"])
def test_id_column_with_results(output_filter):
    """The sixth column of five joined columns is the result."""
    assert transform_csv(FIVE_COLUMNS, input_filter="$[1:]", join="input", output_filter=output_filter) == (
        "1000,10\n2000,26\n"
    )


def test_first_three_columns_with_results():
    """`$[0:2, 5:]`, as in the documentation, means three columns only with inclusive slices."""
    options = {"input_filter": "$[1:]", "join": "input", "output_filter": "$[0:2, 5:]"}
    assert transform_csv("1000,1,2,3,4\n", **options) == "1000,1,10\n"
    assert transform_csv("1000,1,2,3,4\n", **options, slice_end="inclusive") == "1000,1,2,10\n"


def test_id_attribute_with_results():
    assert transform_json(
        '{"id":"a","features":[1,2]}\n{"features":[3, 4],"id":"b"}\n',
        input_filter="$.features",
        join="input",
        output_filter="$['id','SageMakerOutput']",
    ) == ('{"id":"a","SageMakerOutput":{"label":3}}\n{"id":"b","SageMakerOutput":{"label":7}}\n')


def test_input_attribute_with_the_reserved_name_is_overwritten():
    text = '{"SageMakerOutput":"mine","x":[1,2]}\n'
    assert transform_json(text, input_filter="$.x", join="input") == (
        '{"x":[1,2],"SageMakerOutput":{"label":3}}\n'
    )


def test_document_without_assembling():
    """One object with one JSON document of many lines: only the result is added."""
    text = b'{\n  "id": 7,\n  "features": [1, 2]\n}\n'
    block = Block(Position("s3://b/in.json"), text, np.array([0]), np.array([len(text)]))
    encoder = TransformJsonEncoder(
        output_columns({"label": np.array([3])}), join="input", output_filter=compile_path("$"), separator=b""
    )
    out = encoder.encode([BlockSelection(block, 0, 1)], {"label": np.array([3])})
    assert out == b'{\n  "id": 7,\n  "features": [1, 2]\n,"SageMakerOutput":{"label":3}}'
