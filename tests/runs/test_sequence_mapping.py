import numpy as np
import pytest

from headrace.core.block import Block, FailureKind, Position
from headrace.core.errors import ConfigError, ModelInputError
from headrace.core.tensor import ModelMetadata, TensorSpec
from headrace.formats.read_options import ReadOptions
from headrace.runs.mapping import Mapper
from headrace.runs.sequences import place_id
from headrace.runs.settings import MappingOptions


def block_of(lines: list[bytes], name: str = "a.csv", **more) -> Block:
    data = b"".join(line + b"\n" for line in lines)
    ends = np.cumsum([len(line) + 1 for line in lines], dtype=np.int64) - 1
    starts = np.array([end - len(line) for end, line in zip(ends, lines, strict=True)], np.int64)
    return Block(Position(f"memory://b/{name}"), data, starts, ends, **more)


def decoded(block: Block, *specs: TensorSpec, width: int = 1, **mapping):
    inputs = specs or (TensorSpec("x", "FP32", (-1, width)),)
    mapper = Mapper(
        ModelMetadata("m", inputs=inputs, is_stateful=True), MappingOptions(**mapping), ReadOptions()
    )
    return mapper.decode_steps(block)


def test_csv_columns_name_sequences_and_ends():
    block = block_of([b"7,1,u 1,true", b'8,2,"u,2",0', b"9,3,u 1,", b"1,4,0, 1 "])
    made, sequences = decoded(block, width=2, sequence=2, sequence_end=3)
    assert sequences.ids.tolist() == ["u 1", "u,2", "u 1", "0"]
    assert sequences.ends.tolist() == [True, False, False, True]
    assert sequences.failures == ()
    assert sequences.place is None
    # The sequence columns are not numbers for the model.
    assert made.tensors["x"].tolist() == [[7, 1], [8, 2], [9, 3], [1, 4]]


def test_sequence_columns_are_excluded_by_name_in_any_order():
    mapper = Mapper(
        ModelMetadata("m", inputs=(TensorSpec("x", "FP32", (-1, 2)),), is_stateful=True),
        MappingOptions(sequence="user"),
        ReadOptions(header="names"),
    )
    made, sequences = mapper.decode_steps(block_of([b"1,a,2"], column_names=("x", "user", "y")))
    assert (made.tensors["x"].tolist(), sequences.ids.tolist()) == ([[1, 2]], ["a"])
    # Another file with another order of columns
    made, sequences = mapper.decode_steps(block_of([b"b,4,3"], column_names=("user", "y", "x")))
    assert (made.tensors["x"].tolist(), sequences.ids.tolist()) == ([[3, 4]], ["b"])


def test_single_column_inputs_skip_sequence_columns():
    specs = (TensorSpec("x", "FP32", (-1,)), TensorSpec("y", "FP32", (-1,)))
    made, _ = decoded(block_of([b"1,a,2", b"3,b,4"]), *specs, sequence=1)
    assert (made.tensors["x"].tolist(), made.tensors["y"].tolist()) == ([1, 3], [2, 4])


def test_named_columns_may_be_sequence_columns():
    made, sequences = decoded(block_of([b"1,5"]), width=2, columns=(0, 1), sequence=0)
    assert (made.tensors["x"].tolist(), sequences.ids.tolist()) == ([[1, 5]], ["1"])


def test_too_few_columns_without_the_sequence_column_are_refused():
    with pytest.raises(ModelInputError, match="without the sequence columns there are 1"):
        decoded(block_of([b"1,a"]), width=2, sequence=1)


def test_record_without_a_sequence_fails_alone():
    lines = [b"1,a,0", b"2,,0", b"3,b,maybe", b"x,c,1", b"5", b"6,d,1", b"7," + b"e" * 257 + b",0"]
    made, sequences = decoded(block_of(lines), sequence=1, sequence_end=2)
    assert made.tensors["x"].ravel().tolist() == [1, 6]
    assert made.rows.tolist() == [0, 5]
    assert [(f.position.record, f.kind) for f in made.failures] == [
        (1, FailureKind.DECODE),
        (2, FailureKind.DECODE),
        (3, FailureKind.DECODE),
        (4, FailureKind.DECODE),
        (6, FailureKind.DECODE),
    ]
    reasons = {f.position.record: f.why for f in made.failures}
    assert "sequence id is empty" in reasons[1]
    assert "invalid end of a sequence 'maybe'" in reasons[2]
    assert "is not a number" in reasons[3]
    assert "limit is 256" in reasons[6]
    # A record that is no input of the model may still be the last of its sequence.
    assert (sequences.ids[3], sequences.ends[3]) == ("c", True)


def test_missing_sequence_column_is_refused():
    with pytest.raises(ConfigError, match='no column "user"; the columns are:'):
        decoded(block_of([b"1,a"], column_names=("x", "u")), sequence="user")


def test_json_fields_name_sequences():
    lines = [
        b'{"x":1,"who":{"id":"a"}}',
        b'{"x":2,"who":{"id":17},"last":true}',
        b'{"x":3,"who":{"id":0},"last":0}',
        b'{"x":4,"who":{"id":1.5}}',
        b'{"x":5,"who":null}',
        b'{"x":6,"who":{"id":"b"},"last":"perhaps"}',
        b"{",
        b'{"x":"no","who":{"id":"a"},"last":1}',
        b'{"x":8,"who":{"id":true},"last":null}',
    ]
    made, sequences = decoded(
        block_of(lines, "a.jsonl"), TensorSpec("x", "FP32", (-1,)), sequence="who.id", sequence_end="last"
    )
    assert made.tensors["x"].tolist() == [1, 2, 3]
    assert sequences.ids.tolist() == ["a", "17", "0", "", "", "", "", "a", ""]
    assert sequences.ends.tolist() == [False, True, False, False, False, False, False, True, False]
    reasons = {f.position.record: f.why for f in made.failures}
    assert sorted(reasons) == [3, 4, 5, 6, 7, 8]
    assert "must be text or a whole number" in reasons[3]
    assert "the record has no sequence id" in reasons[4]
    assert "not JSON" in reasons[6]
    assert "must be text or a whole number" in reasons[8]


def test_other_formats_have_no_sequence_columns():
    with pytest.raises(ConfigError, match=r"a\.rec is read as recordio: choose @object or @member"):
        decoded(block_of([b"abc"], "a.rec"), TensorSpec("x", "BYTES", (-1,)), sequence="user")


def test_all_records_of_an_object_are_one_sequence():
    made, sequences = decoded(block_of([b"1", b"bad", b"3"]), sequence="@object")
    assert sequences.ids.tolist() == ["memory://b/a.csv"] * 3
    assert (sequences.ends.tolist(), sequences.place) == ([False] * 3, 0)
    assert made.tensors["x"].ravel().tolist() == [1, 3]


def test_long_name_has_a_digest_id():
    one, other = (place_id(f"s3://b/{c}{'x' * 300}") for c in "ab")
    assert one != other
    assert len(one) == len(other) <= 256
    assert place_id("s3://b/k") == "s3://b/k"
