"""The mapping of features to inputs."""

import pytest

from cases import for_each
from formats.framed_files import recordio, tfrecord
from formats.proto_messages import example, record
from headrace.core.block import Position
from headrace.core.errors import ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read import read_object
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.settings import MappingOptions

NUMBERS = TensorSpec("x", "FP32", (-1, 2))
OPEN = TensorSpec("x", "FP32", (-1, -1))
PERSON = {"age": ("int64_list", [7]), "name": ("bytes_list", [b"Jo"]), "size": ("float_list", [1.5, 2])}


def block_of(*records, name="a.rec"):
    data = (recordio if name.endswith("rec") else tfrecord)(records)
    (block,) = read_object(f"memory://b/{name}", [data], ReadOptions())
    return block


def mapper(*inputs, schema=None, **mapping):
    return Mapper(ModelMetadata("m", inputs=inputs), MappingOptions(**mapping), ReadOptions(), schema)


def values(decoded):
    return {name: data.tolist() for name, data in decoded.tensors.items()}


def vector(*numbers, name="values"):
    return record(**{name: ("float32_tensor", numbers)})


@for_each("inputs", [(NUMBERS,), (OPEN,), (TensorSpec("x", "FP32"),), ()])
def test_vector_feature_feeds_the_only_input(inputs):
    assert values(mapper(*inputs).decode(block_of(vector(1, 2), vector(3, 4)))) == {"x": [[1, 2], [3, 4]]}


def test_row_has_the_models_shape():
    spec = TensorSpec("x", "FP32", (-1, -1, 2))
    assert values(mapper(spec).decode(block_of(vector(1, 2, 3, 4)))) == {"x": [[[1, 2], [3, 4]]]}
    scalar = TensorSpec("x", "FP32", (-1,))
    assert values(mapper(scalar).decode(block_of(vector(1)))) == {"x": [1]}


@for_each("name", ["a.rec", "a.tfrecord"])
@for_each(("shape", "expected"), [((-1,), [b"\xff\0"]), ((-1, 1), [[b"\xff\0"]]), (None, [b"\xff\0"])])
def test_bytes_input_takes_whole_records(name, shape, expected):
    used = mapper(TensorSpec("b", "BYTES", shape))
    assert values(used.decode(block_of(b"\xff\0", name=name))) == {"b": expected}


def test_input_takes_the_feature_of_its_name_or_the_only_one():
    assert values(
        mapper(NUMBERS).decode(block_of(record(x=("float32_tensor", [1, 2]), values=("float32_tensor", [9]))))
    ) == {"x": [[1, 2]]}
    assert values(mapper(NUMBERS).decode(block_of(vector(1, 2, name="v")))) == {"x": [[1, 2]]}
    assert values(mapper(NUMBERS).decode(block_of(example(v=("float_list", [1, 2])), name="a.tfrecord"))) == {
        "x": [[1, 2]]
    }


def test_several_inputs_take_a_feature_each():
    inputs = [
        TensorSpec("name", "BYTES", (-1,)),
        TensorSpec("age", "FP32", (-1, 1)),
        TensorSpec("size", "FP64", (-1, -1)),
    ]
    block = block_of(example(**PERSON), name="a.tfrecord")
    expected = {"name": [b"Jo"], "age": [[7]], "size": [[1.5, 2]]}
    assert values(mapper(*inputs).decode(block)) == expected
    chosen = mapper(TensorSpec("a", "FP32", (-1,)), TensorSpec("b", "BYTES", (-1,)), columns=("age", "name"))
    assert values(chosen.decode(block)) == {"a": [7], "b": [b"Jo"]}


def test_features_are_selected_in_the_requested_order():
    block = block_of(example(**PERSON), name="a.tfrecord")
    assert values(mapper(OPEN, columns=("size", "age")).decode(block)) == {"x": [[1.5, 2, 7]]}
    text = TensorSpec("t", "BYTES", (-1,))
    assert values(mapper(text, text_column="name").decode(block)) == {"t": [b"Jo"]}


@for_each(
    ("inputs", "mapping", "why"),
    [
        ((NUMBERS,), {}, "it takes x, but the records .* have the features age, name, size: choose features"),
        ((NUMBERS, OPEN), {"columns": ("a",)}, "it has 2 inputs, but --columns names 1 features"),
        ((OPEN,), {"columns": ("weight",)}, "have no feature weight .they have age, name, size."),
        (
            (TensorSpec("x", "FP32", (-1, -1, 3)),),
            {"columns": ("size",)},
            "takes .-1, -1, 3., but a record has 2 values",
        ),
    ],
)
def test_unfit_features_are_refused_at_once(inputs, mapping, why):
    with pytest.raises(ModelInputError, match=why):
        mapper(*inputs, **mapping).decode(block_of(example(**PERSON), name="a.tfrecord"))


def test_non_messages_are_refused_if_they_must_define_the_width():
    with pytest.raises(ModelInputError, match=r"are no aialgs\.data\.Record messages .*one BYTES input"):
        mapper(OPEN).decode(block_of(b"junk"))


def test_non_messages_fail_alone_if_the_model_defines_the_width():
    used = mapper(NUMBERS)
    assert len(used.decode(block_of(b"junk")).failures) == 1
    assert values(used.decode(block_of(vector(1, 2)))) == {"x": [[1, 2]]}


def test_first_valid_message_decides():
    decoded = mapper(OPEN).decode(block_of(b"junk", b"", vector(1, 2), vector(3, 4)))
    assert values(decoded) == {"x": [[1, 2], [3, 4]]}
    assert [f.position.record for f in decoded.failures] == [0, 1]


def test_later_mismatch_fails_alike_after_resume():
    undisturbed = mapper(OPEN)
    undisturbed.decode(block_of(vector(1, 2, name="v")))
    resumed = mapper(OPEN, schema=undisturbed.schema)
    for used in (undisturbed, resumed):
        decoded = used.decode(block_of(vector(1, 2, 3, name="v"), vector(1, 2, name="w")))
        assert [f.why for f in decoded.failures] == [
            'feature "v" has 3 values, 2 expected',
            'feature "v" is missing',
        ]


def test_failure_positions_are_those_of_headers():
    assert block_of(vector(1), vector(2)).position(1) == Position("memory://b/a.rec", record=1, byte=28)
