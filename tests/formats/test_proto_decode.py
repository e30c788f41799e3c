"""Tests of `ProtoDecoder`: both decoding paths agree, and a bad record fails alone."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.framed_files import recordio, tfrecord
from formats.proto_messages import example, record
from headrace.core.block import FailureKind, Position
from headrace.formats.frames import RecordIOFormat
from headrace.formats.proto_decode import ProtoDecoder, ProtoInput
from headrace.formats.proto_messages import EXAMPLE, RECORD
from headrace.formats.tfrecord import TfRecordFormat

F4, F8 = np.dtype(np.float32), np.dtype(np.float64)


def block_of(*records):
    (block,) = RecordIOFormat().blocks([recordio(records)], Position("o"))
    return block


def decoder(dtype=F4, shape=(3,), names=("values",), kind=RECORD):
    return ProtoDecoder(kind, {"x": ProtoInput(names, None if dtype is None else np.dtype(dtype), shape)})


def vector(*values, member="float32_tensor", **more):
    return record(values=(member, values), **more)


def test_vectors_become_rows():
    decoded = decoder().decode(block_of(vector(1, 2, 3, label=1), vector(4, 5, 6, label=0)))
    assert decoded.tensors["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert (decoded.tensors["x"].dtype, decoded.rows, decoded.failures) == (F4, None, ())


ROWS = st.lists(
    st.one_of(
        st.builds(
            lambda v, label: vector(*v, label=label),
            st.tuples(*[st.floats(width=32)] * 3),
            st.floats(width=32),
        ),
        st.builds(
            lambda v, uid: vector(*v, uid=uid), st.tuples(*[st.floats(width=32)] * 3), st.sampled_from("ab")
        ),
        st.builds(lambda v: vector(*v, member="float64_tensor"), st.tuples(*[st.floats()] * 3)),
        st.builds(lambda v: vector(*v, packed=False), st.tuples(*[st.floats(width=32)] * 3)),
        st.builds(lambda v: vector(*v, member="int32_tensor"), st.tuples(*[st.integers(-9, 9)] * 3)),
        st.sampled_from(
            [
                b"",
                b"junk",
                vector(1, 2),
                vector(1, 2, 3)[:-1],
                record(other=("float32_tensor", [1, 2, 3])),
                record(valuez=("float32_tensor", [1, 2, 3])),
            ]
        ),
    ),
    max_size=12,
)


@given(ROWS, st.sampled_from(["float32", "float64", "float16", "int32"]), st.integers(1, 5))
def test_block_decodes_like_its_records_one_by_one(records, dtype, step):
    """The result depends neither on the first layout nor on earlier blocks."""
    shared_decoder = decoder(dtype)
    for at in range(0, len(records), step):
        some = records[at : at + step]
        decoded = shared_decoder.decode(block_of(*some))
        rows = list(range(len(some))) if decoded.rows is None else decoded.rows.tolist()
        expected, failed = [], []
        for index, data in enumerate(some):
            alone = decoder(dtype).decode(block_of(data))
            if alone.failures:
                failed.append((index, alone.failures[0].why, data))
            else:
                expected.append(alone.tensors["x"][0].tobytes())
        assert [row.tobytes() for row in decoded.tensors["x"]] == expected
        assert [(f.position.record, f.why, f.raw) for f in decoded.failures] == failed
        assert sorted([*rows, *(i for i, _, _ in failed)]) == list(range(len(some)))


@given(st.lists(st.tuples(*[st.floats()] * 2), min_size=1, max_size=5))
def test_numbers_are_cast_as_numpy_casts_them(rows):
    block = block_of(*(vector(*row, member="float64_tensor") for row in rows))
    with np.errstate(over="ignore"):
        expected = np.array(rows).astype(F4)
    assert decoder(F4, (2,)).decode(block).tensors["x"].tobytes() == expected.tobytes()


@for_each(
    ("bad", "why"),
    [
        (b"junk", "invalid aialgs.data.Record message: field 13 at byte 2 is longer than its message"),
        (record(other=("float32_tensor", [1])), 'feature "values" is missing'),
        (vector(1, 2), 'feature "values" has 2 values, 3 expected'),
        (vector(b"a", member="bytes"), 'feature "values" holds bytes, but numbers are expected'),
    ],
)
def test_bad_record_is_the_only_failure(bad, why):
    decoded = decoder().decode(block_of(vector(1, 2, 3), bad, vector(4, 5, 6)))
    assert decoded.tensors["x"].tolist() == [[1, 2, 3], [4, 5, 6]]
    assert decoded.rows.tolist() == [0, 2]
    (failure,) = decoded.failures
    assert (failure.kind, failure.why, failure.raw, failure.position.record) == (
        FailureKind.DECODE,
        why,
        bad,
        1,
    )


@for_each(
    ("dtype", "member", "good", "bad"),
    [
        ("int32", "float32_tensor", -3, 2.5),
        ("int32", "float32_tensor", 2**30, 2**31),
        ("int64", "float64_tensor", 2**62, 2.0**63),
        ("int64", "float64_tensor", -(2.0**63), float("nan")),
        ("uint8", "int32_tensor", 255, -1),
        ("uint64", "int32_tensor", 0, -1),
        ("bool", "int32_tensor", 1, 2),
    ],
)
def test_integers_require_whole_numbers_in_range(dtype, member, good, bad):
    decoded = decoder(dtype, ()).decode(block_of(vector(good, member=member), vector(bad, member=member)))
    assert decoded.tensors["x"].tolist() == [good]
    assert [f.why for f in decoded.failures] == [f'feature "values" holds numbers that are not {dtype}']


def test_example_features_feed_several_inputs():
    one = example(age=("int64_list", [7]), name=("bytes_list", [b"\xff"]), size=("float_list", [1.5, 2]))
    two = example(age=("int64_list", [-8]), name=("bytes_list", [b"b"]), size=("float_list", [3, 4]))
    (block,) = TfRecordFormat().blocks([tfrecord([one, two, b""])], Position())
    shared_decoder = ProtoDecoder(
        EXAMPLE,
        {
            "age": ProtoInput(("age",), np.dtype(np.int64), (1,)),
            "name": ProtoInput(("name",), None, ()),
            "both": ProtoInput(("age", "size"), F4, (3,)),
        },
    )
    decoded = shared_decoder.decode(block)
    assert {name: data.tolist() for name, data in decoded.tensors.items()} == {
        "age": [[7], [-8]],
        "name": [b"\xff", b"b"],
        "both": [[7, 1.5, 2], [-8, 3, 4]],
    }
    assert [f.why for f in decoded.failures] == ['feature "age" is missing']


def test_several_features_form_one_row():
    def message(a, b):
        return example(a=("float_list", a), b=("float_list", b), c=("int64_list", [1]))

    (block,) = TfRecordFormat().blocks([tfrecord([message([1], [2, 3]), message([4], [5, 6])])], Position())
    shared_decoder = decoder(F8, (3,), ("b", "a"), EXAMPLE)
    assert shared_decoder.decode(block).tensors["x"].tolist() == [[2, 3, 1], [5, 6, 4]]


def test_empty_rows_are_decoded():
    assert decoder(shape=(0,)).decode(block_of(vector(), vector())).tensors["x"].shape == (2, 0)
    assert decoder(shape=(2, 0)).decode(block_of(vector(), vector())).tensors["x"].shape == (2, 2, 0)


def test_skipped_varint_belongs_to_the_layout():
    """In the second record the varint ends a byte earlier, so later bytes differ in meaning."""
    vector_of = vector(1, 2, 3)
    one, other = b"\x30\x80\x01" + vector_of, b"\x30\x01\x38" + vector_of
    decoded = decoder().decode(block_of(one, other))
    assert decoded.tensors["x"].tolist() == [[1, 2, 3]]
    assert [f.position.record for f in decoded.failures] == [1]


def test_sparse_vector_is_not_decoded_as_dense():
    sparse = record(values=("float32_tensor", {"values": [1, 2, 3], "keys": [2, 0, 1], "shape": [3]}))
    assert decoder().decode(block_of(sparse, sparse)).tensors["x"].tolist() == [[2, 3, 1]] * 2
