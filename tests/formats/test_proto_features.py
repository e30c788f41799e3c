"""Features of messages that the real protobuf runtime wrote."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.proto_messages import EXAMPLES, RECORDS, example, record
from headrace.formats.proto_features import EXAMPLE, RECORD, feature_values, features
from headrace.formats.proto_wire import WireError

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
    found = features(data, kind, wanted)
    return {name.decode(): feature_values(data, f, name).tolist() for name, f in found.items()}


def same(values, others):
    """Also NaNs."""
    return repr(values) == repr(others)


@given(st.lists(st.tuples(st.dictionaries(NAMES, LISTS, max_size=3), st.booleans()), min_size=1, max_size=3))
def test_examples_say_what_protobuf_says(parts):
    """Also several, one behind the other, which protobuf reads as one."""
    data = b"".join(example(packed=packed, **lists) for lists, packed in parts)
    expected = {}
    for name, feature in EXAMPLES[True].FromString(data).features.feature.items():
        member = feature.WhichOneof("kind")
        expected[name] = list(getattr(feature, member).value)
    found = read(data, EXAMPLE)
    assert same(dict(sorted(found.items())), dict(sorted(expected.items())))


@given(
    st.lists(st.tuples(st.dictionaries(NAMES, TENSORS, max_size=3), st.booleans()), min_size=1, max_size=3)
)
def test_records_say_what_protobuf_says(parts):
    data = b"".join(record(packed=packed, uid="u", label=1, **tensors) for tensors, packed in parts)
    expected = {}
    for name, value in RECORDS[True].FromString(data).features.items():
        member = value.WhichOneof("value")
        held = getattr(value, member)
        expected[name] = list(held.value if member == "bytes" else held.values)
    assert same(dict(sorted(read(data, RECORD).items())), dict(sorted(expected.items())))


def test_a_value_that_comes_again_adds_to_what_there_is():
    """As protobuf merges a message that comes twice; another member of the oneof takes its place."""

    def entry(value):
        body = b"\x0a\x01x" + b"".join(b"\x12" + bytes([len(v)]) + v for v in value)
        return b"\x0a" + bytes([len(body)]) + body

    one = b"\x12\x06\x0a\x04" + np.float32(1).tobytes()
    two = b"\x12\x06\x0a\x04" + np.float32(2).tobytes()
    integers = b"\x3a\x03\x0a\x01\x07"
    for values in ([one, two], [one, integers], [integers, one], [one, integers, two], [one + two]):
        data = entry(values)
        held = RECORDS[True].FromString(data).features["x"]
        member = getattr(held, held.WhichOneof("value"))
        assert read(data, RECORD) == {"x": list(member.values)}


def test_only_what_is_wanted_is_looked_at():
    data = record(a=("float32_tensor", [1]), b=("float32_tensor", [2]))
    assert read(data, RECORD, {b"b"}) == {"b": [2.0]}


def test_sparse_tensors_are_written_out():
    held = {"values": [1.5, 2.5], "keys": [4, 0], "shape": [2, 3]}
    assert read(record(values=("float32_tensor", held)), RECORD) == {"values": [2.5, 0, 0, 0, 1.5, 0]}
    assert read(record(packed=False, values=("float32_tensor", held)), RECORD) == {
        "values": [2.5, 0, 0, 0, 1.5, 0]
    }


@pytest.mark.parametrize(
    "held",
    [
        {"values": [1], "keys": [6], "shape": [2, 3]},
        {"values": [1], "keys": [0, 1], "shape": [2, 3]},
        {"values": [1], "keys": [0]},
        {"values": [1], "keys": [0], "shape": [2**40]},
        {"values": [1], "keys": [2**64 - 1], "shape": [2**64 - 1]},
    ],
)
def test_sparse_tensors_that_do_not_fit_together_are_refused(held):
    """A shape of a million gigabytes too: it costs the writer nothing."""
    with pytest.raises(ValueError, match="does not fit together"):
        read(record(values=("float32_tensor", held)), RECORD)


@given(st.binary(max_size=60))
def test_any_bytes_have_features_or_are_an_error(data):
    for kind in (RECORD, EXAMPLE):
        try:
            found = features(data, kind, None)
            for name, feature in found.items():
                feature_values(data, feature, repr(name))
        except ValueError:
            continue


def test_what_is_no_message_is_an_error():
    with pytest.raises(WireError, match="field 1 at byte 1 is no message"):
        features(b"\x08\x01", RECORD, None)


def test_what_was_passed_over_has_no_say():
    """Any other bytes there give the same features."""
    data = bytearray(
        record(uid="12345", label=3, values=("float32_tensor", [1, 2]), other=("bytes", [b"abc"]))
    )
    passed = []
    before = features(bytes(data), RECORD, {b"values"}, passed)
    assert sum(stop - start for start, stop in passed) > 10
    for start, stop in passed:
        data[start:stop] = b"\xff" * (stop - start)
    assert features(bytes(data), RECORD, {b"values"}) == before
