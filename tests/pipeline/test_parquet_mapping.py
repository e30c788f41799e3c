"""Which columns of Parquet feed which inputs."""

import pyarrow as pa
import pytest

from formats.parquet_files import only_block
from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read import ReadOptions
from headrace.pipeline.mapping import Mapper
from headrace.pipeline.settings import MappingOptions

TWO = TensorSpec("x", "FP32", (-1, 2))
OPEN = TensorSpec("x", "FP32", (-1, -1))
PEOPLE = {"name": ["Jo", "Al"], "age": [7, 8], "size": [1.5, 2.5], "v": [[1, 2], [3, 4]]}


def mapper(*inputs, learned=None, **mapping):
    return Mapper(ModelMetadata("m", inputs=inputs), MappingOptions(**mapping), ReadOptions(), learned)


def values(decoded):
    return {name: data.tolist() for name, data in decoded.tensors.items()}


@pytest.mark.parametrize("inputs", [(TWO,), (OPEN,), (TensorSpec("x", "FP32"),), ()])
def test_all_columns_of_numbers_feed_the_one_input(inputs):
    used = mapper(*inputs)
    assert values(used.decode(only_block(PEOPLE))) == {"x": [[7, 1.5], [8, 2.5]]}
    assert used.kind == "parquet"


def test_a_column_of_nulls_alone_is_still_one_of_numbers():
    """Of the rows that come first, which must not decide that it is none."""
    block = only_block({"a": pa.array([None, None], pa.float64()), "b": [1, 2]})
    used = mapper(OPEN)
    assert len(used.decode(block).failures) == 2
    assert values(used.decode(only_block({"a": [1.5], "b": [2]}))) == {"x": [[1.5, 2]]}


def test_columns_are_chosen_by_name_or_index():
    block = only_block(PEOPLE)
    assert values(mapper(TWO, columns=("size", "age")).decode(block)) == {"x": [[1.5, 7], [2.5, 8]]}
    assert values(mapper(OPEN, columns=(2, 1)).decode(block)) == {"x": [[1.5, 7], [2.5, 8]]}
    assert values(mapper(TensorSpec("x", "FP32", (-1,)), columns=("age",)).decode(block)) == {"x": [7, 8]}


def test_the_column_of_the_inputs_name_comes_before_all():
    block = only_block({"x": [[1, 2], [3, 4]], "a": [1, 2], "b": [1, 2]})
    assert values(mapper(TWO).decode(block)) == {"x": [[1, 2], [3, 4]]}
    assert values(mapper(OPEN).decode(block)) == {"x": [[1, 2], [3, 4]]}


def test_several_inputs_take_a_column_each():
    inputs = (
        TensorSpec("age", "INT32", (-1, 1)),
        TensorSpec("name", "BYTES", (-1,)),
        TensorSpec("v", "FP32", (-1, -1)),
    )
    expected = {"age": [[7], [8]], "name": ["Jo", "Al"], "v": [[1, 2], [3, 4]]}
    assert values(mapper(*inputs).decode(only_block(PEOPLE))) == expected
    chosen = mapper(
        TensorSpec("a", "BYTES", (-1, 1)), TensorSpec("b", "FP64", (-1,)), columns=("name", "size")
    )
    assert values(chosen.decode(only_block(PEOPLE))) == {"a": [["Jo"], ["Al"]], "b": [1.5, 2.5]}


@pytest.mark.parametrize("shape", [(-1,), None])
def test_text_goes_to_bytes(shape):
    spec = TensorSpec("t", "BYTES", shape)
    assert values(mapper(spec, text_column="name").decode(only_block(PEOPLE))) == {"t": ["Jo", "Al"]}
    assert values(mapper(spec).decode(only_block({"only": ["a"]}))) == {"t": ["a"]}


@pytest.mark.parametrize(
    ("inputs", "mapping", "why"),
    [
        ((TensorSpec("x", "FP32", (-1, 3)),), {}, "takes 3 numbers a row, but 2 columns are numbers: choose"),
        ((TensorSpec("x", "BYTES", (-1,)),), {}, "takes text: say which column with --text-column"),
        (
            (TWO,),
            {"columns": ("weight", "age")},
            "there is no column weight .*has the columns name, age, size, v",
        ),
        ((TWO,), {"columns": (9,)}, "there is no column 9: the file has 4"),
        ((TWO,), {"columns": ("age", "size", "age")}, "takes .-1, 2., but 3 columns are chosen"),
        ((TWO, OPEN), {"columns": ("age",)}, "it has 2 inputs, but --columns names 1 columns"),
        ((TWO, TensorSpec("q", "FP32", (-1,))), {}, "there is no column x"),
    ],
)
def test_what_can_never_fit_is_said_at_once(inputs, mapping, why):
    with pytest.raises(ModelInputError, match=why):
        mapper(*inputs, **mapping).decode(only_block(PEOPLE))


def test_a_later_file_that_differs_fails_the_same_after_a_resumption():
    undisturbed = mapper(OPEN)
    undisturbed.decode(only_block(PEOPLE))
    later = only_block({"age": [7, 8], "height": [1.0, 2.0], "size": ["a", "b"]})
    for used in (undisturbed, mapper(OPEN, learned=undisturbed.learned)):
        decoded = used.decode(later)
        assert [f.why for f in decoded.failures] == [
            'column "size" is not float32, but "a"',
            'column "size" is not float32, but "b"',
        ]


def test_columns_that_are_called_as_media_are_are_columns():
    spec = TensorSpec("x", "FP32", (-1,))
    assert values(mapper(spec).decode(only_block({"image": [1, 2]}))) == {"x": [1, 2]}
