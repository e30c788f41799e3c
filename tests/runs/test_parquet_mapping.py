"""The mapping of Parquet columns to inputs."""

import pyarrow as pa
import pytest

from cases import for_each
from formats.parquet_files import read_single_block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions

TWO = TensorSpec("x", "FP32", (-1, 2))
OPEN = TensorSpec("x", "FP32", (-1, -1))
PEOPLE = {"name": ["Jo", "Al"], "age": [7, 8], "size": [1.5, 2.5], "v": [[1, 2], [3, 4]]}


def mapper(*inputs, schema=None, **mapping):
    return Mapper(ModelMetadata("m", inputs=inputs), MappingOptions(**mapping), ReadOptions(), schema)


def values(decoded):
    return {name: data.tolist() for name, data in decoded.tensors.items()}


@for_each("inputs", [(TWO,), (OPEN,), (TensorSpec("x", "FP32"),), ()])
def test_numeric_columns_feed_the_only_input(inputs):
    used = mapper(*inputs)
    assert values(used.decode(read_single_block(PEOPLE))) == {"x": [[7, 1.5], [8, 2.5]]}
    assert used.kind == "parquet"


def test_column_of_nulls_counts_as_numeric():
    """The first rows may be nulls; they must not exclude the column."""
    block = read_single_block({"a": pa.array([None, None], pa.float64()), "b": [1, 2]})
    used = mapper(OPEN)
    assert len(used.decode(block).failures) == 2
    assert values(used.decode(read_single_block({"a": [1.5], "b": [2]}))) == {"x": [[1.5, 2]]}


def test_columns_are_selected_by_name_or_index():
    block = read_single_block(PEOPLE)
    assert values(mapper(TWO, columns=("size", "age")).decode(block)) == {"x": [[1.5, 7], [2.5, 8]]}
    assert values(mapper(OPEN, columns=(2, 1)).decode(block)) == {"x": [[1.5, 7], [2.5, 8]]}
    assert values(mapper(TensorSpec("x", "FP32", (-1,)), columns=("age",)).decode(block)) == {"x": [7, 8]}


def test_column_of_the_inputs_name_is_preferred():
    block = read_single_block({"x": [[1, 2], [3, 4]], "a": [1, 2], "b": [1, 2]})
    assert values(mapper(TWO).decode(block)) == {"x": [[1, 2], [3, 4]]}
    assert values(mapper(OPEN).decode(block)) == {"x": [[1, 2], [3, 4]]}


def test_inputs_take_one_column_each():
    inputs = (
        TensorSpec("age", "INT32", (-1, 1)),
        TensorSpec("name", "BYTES", (-1,)),
        TensorSpec("v", "FP32", (-1, -1)),
    )
    expected = {"age": [[7], [8]], "name": ["Jo", "Al"], "v": [[1, 2], [3, 4]]}
    assert values(mapper(*inputs).decode(read_single_block(PEOPLE))) == expected
    chosen = mapper(
        TensorSpec("a", "BYTES", (-1, 1)), TensorSpec("b", "FP64", (-1,)), columns=("name", "size")
    )
    assert values(chosen.decode(read_single_block(PEOPLE))) == {"a": [["Jo"], ["Al"]], "b": [1.5, 2.5]}


@for_each("shape", [(-1,), None])
def test_text_column_feeds_a_bytes_input(shape):
    spec = TensorSpec("t", "BYTES", shape)
    assert values(mapper(spec, text_column="name").decode(read_single_block(PEOPLE))) == {"t": ["Jo", "Al"]}
    assert values(mapper(spec).decode(read_single_block({"only": ["a"]}))) == {"t": ["a"]}


@for_each(
    ("inputs", "mapping", "why"),
    [
        (
            (TensorSpec("x", "FP32", (-1, 3)),),
            {},
            "takes 3 numbers per row, but 2 columns are numeric: choose",
        ),
        ((TensorSpec("x", "BYTES", (-1,)),), {}, "takes text: choose its column with --text-column"),
        (
            (TWO,),
            {"columns": ("weight", "age")},
            "there is no column weight .*has the columns name, age, size, v",
        ),
        ((TWO,), {"columns": (9,)}, "there is no column 9: the file has 4"),
        ((TWO,), {"columns": ("age", "size", "age")}, "takes .-1, 2., but 3 columns are selected"),
        ((TWO, OPEN), {"columns": ("age",)}, "it has 2 inputs, but --columns names 1 columns"),
        ((TWO, TensorSpec("q", "FP32", (-1,))), {}, "there is no column x"),
    ],
)
def test_unfit_columns_are_refused_at_once(inputs, mapping, why):
    with pytest.raises(ModelInputError, match=why):
        mapper(*inputs, **mapping).decode(read_single_block(PEOPLE))


def test_later_mismatch_fails_alike_after_resume():
    undisturbed = mapper(OPEN)
    undisturbed.decode(read_single_block(PEOPLE))
    later = read_single_block({"age": [7, 8], "height": [1.0, 2.0], "size": ["a", "b"]})
    for used in (undisturbed, mapper(OPEN, schema=undisturbed.schema)):
        decoded = used.decode(later)
        assert [f.why for f in decoded.failures] == [
            'column "size" is not float32, but "a"',
            'column "size" is not float32, but "b"',
        ]


def test_columns_named_like_media_are_columns():
    spec = TensorSpec("x", "FP32", (-1,))
    assert values(mapper(spec).decode(read_single_block({"image": [1, 2]}))) == {"x": [1, 2]}
