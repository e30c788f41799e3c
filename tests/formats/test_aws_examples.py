"""The worked examples of the vendor's page on associating prediction results with input records, end to end.

https://docs.aws.amazon.com/sagemaker/latest/dg/batch-transform-data-processing.html: filter, predict, join, filter.
The model adds up the numbers that it is given, so that what it was given shows.
"""

import numpy as np
import pytest

from headrace.core.block import Block, Position
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.contract import Piece
from headrace.formats.csv import CsvFormat
from headrace.formats.encode import output_columns
from headrace.formats.json_path import compile_path
from headrace.formats.jsonl import JsonLinesFormat
from headrace.formats.read import ReadOptions
from headrace.formats.transform_csv import TransformCsvEncoder
from headrace.formats.transform_json import TransformJsonEncoder
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.settings import MappingOptions


def predicted(blocks, input_filter, slice_end, output):
    """Pieces of the records that decoded, and the sum of what each gave the model."""
    model = ModelMetadata("sum", inputs=(TensorSpec("x", "FP64", (-1, -1)),))
    mapper = Mapper(model, MappingOptions(input_filter=input_filter, slice_end=slice_end), ReadOptions())
    (block,) = blocks
    decoded = mapper.decode(block)
    assert not decoded.failures
    return [Piece(block, 0, len(block))], {output: decoded.tensors["x"].sum(axis=1).astype(np.int64)}


def transformed_csv(text, *, input_filter="$", join="none", output_filter="$", slice_end="exclusive"):
    """What stands in the output object."""
    blocks = CsvFormat().blocks([text.encode()], Position("s3://b/in.csv"))
    pieces, outputs = predicted(blocks, input_filter, slice_end, "label")
    path = compile_path(output_filter, slice_end=slice_end)
    encoder = TransformCsvEncoder(output_columns(outputs), join=join, output_filter=path)
    return (encoder.begin() + encoder.encode(pieces, outputs) + encoder.finish()).decode()


def transformed_json(
    text, *, input_filter="$", join="none", output_filter="$", separator=b"\n", output="label"
):
    """What stands in the output object."""
    blocks = JsonLinesFormat().blocks([text.encode()], Position("s3://b/in.jsonl"))
    pieces, outputs = predicted(blocks, input_filter, "exclusive", output)
    path = compile_path(output_filter)
    encoder = TransformJsonEncoder(
        output_columns(outputs), join=join, output_filter=path, separator=separator
    )
    return (encoder.begin() + encoder.encode(pieces, outputs) + encoder.finish()).decode()


FIVE_COLUMNS = "1000,1,2,3,4\n2000,5,6,7,8\n"


def test_output_only_inferences():
    """The default: nothing is joined."""
    assert transformed_csv("1,2\n3,4\n") == "3\n7\n"
    assert transformed_json("[1,2]\n[3,4]\n") == '{"label":3}\n{"label":7}\n'


def test_output_inferences_joined_with_input_data():
    """`[1,2,3]` and `[1]` are `[1,2,3,1]`."""
    assert transformed_csv("1,2,3\n", join="input") == "1,2,3,6\n"
    joined = transformed_json('{"x":[1,2]}\n', join="input", input_filter="$.x")
    assert joined == '{"x":[1,2],"SageMakerOutput":{"label":3}}\n'


def test_the_key_and_the_label():
    """`{"key":1}` and `{"label":1}`, as JSON Lines and as a document, which nothing follows."""
    line = '{"key":1,"SageMakerOutput":{"label":1}}'
    assert transformed_json('{"key":1}\n', join="input", input_filter="$[*]") == line + "\n"
    assert transformed_json('{"key":1}', join="input", input_filter="$.*", separator=b"") == line


def test_a_record_that_is_no_object_is_wrapped():
    """The input is stored under SageMakerInput."""
    assert (
        transformed_json("[1,2.0]\n", join="input")
        == '{"SageMakerInput":[1,2.0],"SageMakerOutput":{"label":3}}\n'
    )


def test_joined_and_the_id_column_excluded_from_the_input():
    """`$[1:]`: the model never sees it, and the output has it."""
    assert transformed_csv(FIVE_COLUMNS, input_filter="$[1:]", join="input") == (
        "1000,1,2,3,4,10\n2000,5,6,7,8,26\n"
    )


@pytest.mark.parametrize("output_filter", ["$[0,-1]", "$[0,5:]", "$[0, 5:]"])
def test_the_id_column_with_results(output_filter):
    """The first and the last column of what is joined; of five columns the result is the sixth."""
    assert transformed_csv(FIVE_COLUMNS, input_filter="$[1:]", join="input", output_filter=output_filter) == (
        "1000,10\n2000,26\n"
    )


def test_the_first_three_columns_with_results():
    """`$[0:2, 5:]`, as the page writes it, means three columns only if slices keep their last one."""
    options = {"input_filter": "$[1:]", "join": "input", "output_filter": "$[0:2, 5:]"}
    assert transformed_csv("1000,1,2,3,4\n", **options) == "1000,1,10\n"
    assert transformed_csv("1000,1,2,3,4\n", **options, slice_end="inclusive") == "1000,1,2,10\n"


def test_the_id_attribute_with_results():
    """`$.features` in, `$['id','SageMakerOutput']` out."""
    assert transformed_json(
        '{"id":"a","features":[1,2]}\n{"features":[3, 4],"id":"b"}\n',
        input_filter="$.features",
        join="input",
        output_filter="$['id','SageMakerOutput']",
    ) == ('{"id":"a","SageMakerOutput":{"label":3}}\n{"id":"b","SageMakerOutput":{"label":7}}\n')


def test_an_input_attribute_of_the_reserved_name_is_overwritten():
    """As the page warns."""
    text = '{"SageMakerOutput":"mine","x":[1,2]}\n'
    assert transformed_json(text, input_filter="$.x", join="input") == (
        '{"x":[1,2],"SageMakerOutput":{"label":3}}\n'
    )


def test_a_document_without_assembling():
    """One object, one JSON document, many lines: nothing is added to it but the result."""
    text = b'{\n  "id": 7,\n  "features": [1, 2]\n}\n'
    block = Block(Position("s3://b/in.json"), text, np.array([0]), np.array([len(text)]))
    encoder = TransformJsonEncoder(
        output_columns({"label": np.array([3])}), join="input", output_filter=compile_path("$"), separator=b""
    )
    out = encoder.encode([Piece(block, 0, 1)], {"label": np.array([3])})
    assert out == b'{\n  "id": 7,\n  "features": [1, 2]\n,"SageMakerOutput":{"label":3}}'
