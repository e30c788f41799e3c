"""Tests of `features` with messages written by the protobuf runtime."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.proto_messages import EXAMPLES, RECORDS, example, record
from headrace.formats.proto_messages import EXAMPLE, RECORD, WireError, feature_values, features

NAMES = st.sampled_from(["values", "x", "é", ""])
LISTS = st.one_of(
    st.tuples(st.just("float_list"), st.lists(st.floats(width=32), max_size=4)),
    st.tuples(st.just("int64_list"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)),
    st.tuples(st.just("bytes_list"), st.lists(st.binary(max_size=4), max_size=4)),
)
TENSORS = st.one_of(
    st.tuples(st.just("float32_tensor"), st.lists(st.floats(width=32), max_size=4)),
    st.tuples(st.just("float64_tensor"), st.lists(st.floats(), max_size=4)),
    st.tuples(st.just("int32_tensor"), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)),
    st.tuples(st.just("bytes"), st.lists(st.binary(max_size=4), max_size=4)),
)


def read(data, kind, wanted=None):
    by_name = features(data, kind, wanted)
    return {name.decode(): feature_values(data, f, name).tolist() for name, f in by_name.items()}


def same_values(values, others):
    """Return True if the values are equal; NaN equals NaN."""
    return repr(values) == repr(others)


@given(st.lists(st.tuples(st.dictionaries(NAMES, LISTS, max_size=3), st.booleans()), min_size=1, max_size=3))
def test_examples_match_protobuf(parts):
    """This includes concatenated messages, which protobuf reads as one message."""
    data = b"".join(example(packed=packed, **lists) for lists, packed in parts)
    expected = {}
    for name, feature in EXAMPLES[True].FromString(data).features.feature.items():
        member = feature.WhichOneof("kind")
        expected[name] = list(getattr(feature, member).value)
    by_name = read(data, EXAMPLE)
    assert same_values(dict(sorted(by_name.items())), dict(sorted(expected.items())))


@given(
    st.lists(st.tuples(st.dictionaries(NAMES, TENSORS, max_size=3), st.booleans()), min_size=1, max_size=3)
)
def test_records_match_protobuf(parts):
    data = b"".join(record(packed=packed, uid="u", label=1, **tensors) for tensors, packed in parts)
    expected = {}
    for name, value in RECORDS[True].FromString(data).features.items():
        member = value.WhichOneof("value")
        tensor = getattr(value, member)
        expected[name] = list(tensor.value if member == "bytes" else tensor.values)
    assert same_values(dict(sorted(read(data, RECORD).items())), dict(sorted(expected.items())))


def test_repeated_value_is_merged():
    """protobuf merges a message that occurs twice; another member of the oneof replaces it."""

    def entry(value):
        body = b"\x0a\x01x" + b"".join(b"\x12" + bytes([len(v)]) + v for v in value)
        return b"\x0a" + bytes([len(body)]) + body

    one = b"\x12\x06\x0a\x04" + np.float32(1).tobytes()
    two = b"\x12\x06\x0a\x04" + np.float32(2).tobytes()
    integers = b"\x3a\x03\x0a\x01\x07"
    for values in ([one, two], [one, integers], [integers, one], [one, integers, two], [one + two]):
        data = entry(values)
        tensor = RECORDS[True].FromString(data).features["x"]
        member = getattr(tensor, tensor.WhichOneof("value"))
        assert read(data, RECORD) == {"x": list(member.values)}


def test_only_requested_features_are_returned():
    data = record(a=("float32_tensor", [1]), b=("float32_tensor", [2]))
    assert read(data, RECORD, {b"b"}) == {"b": [2.0]}


def test_sparse_tensors_are_expanded():
    tensor = {"values": [1.5, 2.5], "keys": [4, 0], "shape": [2, 3]}
    assert read(record(values=("float32_tensor", tensor)), RECORD) == {"values": [2.5, 0, 0, 0, 1.5, 0]}
    assert read(record(packed=False, values=("float32_tensor", tensor)), RECORD) == {
        "values": [2.5, 0, 0, 0, 1.5, 0]
    }


@for_each(
    "tensor",
    [
        {"values": [1], "keys": [6], "shape": [2, 3]},
        {"values": [1], "keys": [0, 1], "shape": [2, 3]},
        {"values": [1], "keys": [0]},
        {"values": [1], "keys": [0], "shape": [2**40]},
        {"values": [1], "keys": [2**64 - 1], "shape": [2**64 - 1]},
    ],
)
def test_inconsistent_sparse_tensors_are_rejected(tensor):
    """This includes a shape of a million gigabytes in a record of a few bytes."""
    with pytest.raises(ValueError, match="is an inconsistent sparse tensor"):
        read(record(values=("float32_tensor", tensor)), RECORD)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_yield_features_or_a_value_error(data):
    for kind in (RECORD, EXAMPLE):
        try:
            by_name = features(data, kind, None)
            for name, feature in by_name.items():
                feature_values(data, feature, repr(name))
        except ValueError:
            continue


def test_non_message_field_is_an_error():
    with pytest.raises(WireError, match="field 1 at byte 1 is not a message"):
        features(b"\x08\x01", RECORD, None)


def test_skipped_bytes_do_not_affect_the_features():
    data = bytearray(
        record(uid="12345", label=3, values=("float32_tensor", [1, 2]), other=("bytes", [b"abc"]))
    )
    skipped = []
    before = features(bytes(data), RECORD, {b"values"}, skipped)
    assert sum(stop - start for start, stop in skipped) > 10
    for start, stop in skipped:
        data[start:stop] = b"\xff" * (stop - start)
    assert features(bytes(data), RECORD, {b"values"}) == before
