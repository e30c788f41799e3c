"""Tests of the wire format reader against the protobuf runtime."""

import numpy as np
import pytest
from google.protobuf import descriptor_pb2
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from formats.proto_messages import add_field, message_class
from headrace.formats.proto_messages import ProtoField, WireError, fields, numbers, varints

KINDS = {
    "float": st.floats(width=32),
    "double": st.floats(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint64": st.integers(0, 2**64 - 1),
}


def lists_class(*, packed):
    file = descriptor_pb2.FileDescriptorProto(name="lists.proto", package="lists", syntax="proto2")
    message = file.message_type.add(name="Lists")
    for number, kind in enumerate(KINDS, 1):
        add_field(message, kind, number, kind, repeated=True, packed=packed)
    add_field(message, "text", 200, "bytes")
    return message_class(file, "Lists")


PACKED, UNPACKED = lists_class(packed=True), lists_class(packed=False)


@given(st.data(), st.lists(st.booleans(), min_size=1, max_size=3))
def test_repeated_numbers_match_protobuf(data, packings):
    """The numbers are packed, unpacked or both, because messages may be concatenated."""
    wire, expected = b"", {kind: [] for kind in KINDS}
    for packed in packings:
        message = (PACKED if packed else UNPACKED)(text=b"between")
        for kind, values in KINDS.items():
            values_drawn = data.draw(st.lists(values, max_size=4))
            getattr(message, kind).extend(values_drawn)
        wire += message.SerializeToString()
    read = PACKED.FromString(wire)
    parsed = list(fields(b"xx" + wire, 2, 2 + len(wire)))
    for number, kind in enumerate(KINDS, 1):
        values = numbers(b"xx" + wire, kind, [f for f in parsed if f.number == number])
        expected = np.array(list(getattr(read, kind)), values.dtype)
        assert values.tobytes() == expected.tobytes()


@given(st.binary(max_size=40))
def test_arbitrary_bytes_are_a_message_or_an_error(data):
    """The fields of a valid message cover all of its bytes."""
    try:
        parsed = list(fields(data, 0, len(data)))
    except WireError:
        return
    assert all(0 <= f.start <= f.stop <= len(data) for f in parsed)
    assert (parsed[-1].stop if parsed else 0) == len(data)


@for_each(
    ("data", "why"),
    [
        (b"\x80", "a varint at byte 0 does not end"),
        (b"\x08" + b"\xff" * 11, "a varint at byte 1 does not end"),
        (b"\x00\x01", "field number 0 at byte 1"),
        (b"\x0b", "unsupported wire type 3 at byte 1"),
        (b"\x0a\x05abc", "field 1 at byte 2 is longer than its message"),
        (b"\x0d\0\0\0", "field 1 at byte 1 is longer than its message"),
    ],
)
def test_malformed_message_error_names_the_byte(data, why):
    with pytest.raises(WireError, match=why):
        list(fields(data, 0, len(data)))


def test_huge_length_is_rejected():
    with pytest.raises(WireError, match="longer than its message"):
        list(fields(b"\x0a\xff\xff\xff\xff\x7f", 0, 6))


@for_each(
    ("kind", "field", "data"),
    [
        ("float", ProtoField(1, 2, 0, 3), b"abc"),
        ("float", ProtoField(1, 0, 0, 1), b"\x01"),
        ("int64", ProtoField(1, 5, 0, 4), b"abcd"),
        ("int64", ProtoField(1, 2, 0, 2), b"\x01\x80"),
        ("int64", ProtoField(1, 2, 0, 11), b"\x80" * 10 + b"\x01"),
    ],
)
def test_numbers_of_another_type_are_rejected(kind, field, data):
    with pytest.raises(WireError):
        numbers(data, kind, [field])


def test_empty_input_has_no_varints():
    assert varints(b"").tolist() == []
