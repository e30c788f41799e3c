"""Encoding of states: round trips, and detection of damage."""

import enum
import math
import struct
import zlib
from collections import OrderedDict
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import levels
from cases import for_each
from headrace.checkpoints import codec
from headrace.checkpoints.codec import DEPTH_MAX, decode_state, encode_state
from headrace.core.sequence import SequenceState

NUMBERS = [np.dtype(order + code) for code in "?bBhHiIlLqQefdFD" for order in "<>"]
OTHERS = [np.dtype(name) for name in ("g", "G", "<M8[ns]", ">M8[D]", "<m8[ms]", "<U3", ">U2", "S5")]
LSTM = {"h": np.arange(256, dtype=np.float32).reshape(2, 128), "steps": 5, "last": -1}

shapes = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
raw_arrays = st.sampled_from(NUMBERS + OTHERS[2:]).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
texts = st.text() | st.binary() | st.just("alone \ud800")


@st.composite
def object_arrays(draw):
    shape = draw(shapes)
    made = np.empty(shape, object)
    for at in np.ndindex(shape):
        made[at] = draw(texts)
    return made


arrays = raw_arrays | object_arrays()
scalars = st.sampled_from(NUMBERS).flatmap(lambda dtype: hnp.arrays(dtype, ())).map(lambda array: array[()])
plain = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.complex_numbers()
    | texts
)
keys = st.text(max_size=5) | st.binary(max_size=5) | st.integers()
values = st.recursive(
    plain | arrays | scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=3)
    ),
    max_leaves=6,
)
states = st.dictionaries(st.text(max_size=5), values, max_size=5)


def same(found, expected) -> bool:
    """Return True if both have equal types, order, float bits and promised memory layout."""
    if isinstance(expected, np.generic):
        # numpy has two types of the same size, with names that depend on the machine.
        return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()
    if type(found) is not type(expected):
        return False
    if isinstance(expected, np.ndarray):
        flags = found.flags
        if not (flags.c_contiguous and flags.writeable and flags.aligned):
            return False
        if (found.dtype, found.shape) != (expected.dtype, expected.shape):
            return False
        if expected.dtype.kind == "O":
            return same(found.tolist(), expected.tolist())
        return found.tobytes() == expected.tobytes()
    if isinstance(expected, dict):
        return same(list(found.items()), list(expected.items()))
    if isinstance(expected, list | tuple):
        return len(found) == len(expected) and all(map(same, found, expected))
    if isinstance(expected, float):
        return struct.pack("d", found) == struct.pack("d", expected)
    if isinstance(expected, complex):
        return same((found.real, found.imag), (expected.real, expected.imag))
    return found == expected


@given(states)
@example({})
@example({"": None, "nan": math.nan, "inf": -math.inf, "large": -(2**63) - 1, "edge": -(2**63), "zero": -0.0})
@example(
    {"empty": np.str_(""), "scalar": np.float64(0.1), "flag": np.True_, "day": np.datetime64("2026-11-22")}
)
@example({"surrogate \ud800": "\udfff", "bits": np.array(["\ud800", b"\xff"], object)})
def test_state_round_trip(state):
    assert same(decode_state(encode_state(state)), state)


@for_each(
    ("dtype", "make"),
    list(
        product(
            NUMBERS + OTHERS,
            ["plain", "scalar", "empty", "reversed", "transposed", "strided", "read-only"],
        )
    ),
)
def test_array_round_trip(dtype, make):
    whole = np.arange(24).astype("S5" if dtype.kind == "S" else "i8").reshape(2, 3, 4).astype(dtype)
    array = {
        "plain": whole,
        "scalar": np.array(whole[1, 1, 1], dtype),
        "empty": whole[:, :0],
        "reversed": whole[::-1, :, ::-1],
        "transposed": whole.T,
        "strided": whole[:, ::2, 1::2],
        "read-only": whole.view(),
    }[make]
    array.flags.writeable = make != "read-only"
    found = decode_state(encode_state({"x": array, "in": [array]}))
    assert same(found["x"], array)
    assert same(found["in"][0], array)


def test_sequence_state_encodes_like_a_dict():
    assert same(decode_state(encode_state(SequenceState("a", LSTM))), LSTM)


def test_decoded_array_does_not_keep_the_buffer():
    (found,) = decode_state(encode_state({"x": np.zeros(3)})).values()
    assert found.base is None


class _Kind(enum.IntEnum):
    ONE = 1


@for_each(
    ("value", "inside"),
    list(
        product(
            [
                object(),
                {1, 2},
                bytearray(b"x"),
                _Kind.ONE,
                OrderedDict(),
                range(3),
                np.ma.masked_array([1], [True]),
                np.zeros(2, "f4,i2"),
                np.void(b"ab"),
                np.array([None], object),
                np.array([1], object),
                np.array(["a"], np.dtypes.StringDType()),
                {1.5: 1},
                {True: 1},
            ],
            [lambda value: value, lambda value: [{"in": (value,)}]],
        )
    ),
)
def test_unsupported_value_error_names_the_key(value, inside):
    with pytest.raises(TypeError, match="state's 'the key'"):
        encode_state({"fine": 1, "the key": inside(value)})


@for_each("key", [1, None, b"x", ("a",), 1.5, True])
def test_keys_must_be_str(key):
    with pytest.raises(TypeError, match="keys are str"):
        encode_state({"fine": 1, key: 2})


def test_nesting_depth_is_limited():
    value: list = []
    value.append(value)
    with pytest.raises(ValueError, match=f"'loop' has lists or dicts more than {DEPTH_MAX} deep"):
        encode_state({"loop": value})
    deepest: list = []
    for _ in range(DEPTH_MAX - 1):
        deepest = [deepest]
    assert decode_state(encode_state({"deep": deepest})) == {"deep": deepest}
    with pytest.raises(ValueError, match="'too deep' has lists or dicts"):
        encode_state({"too deep": {"in": deepest}})


def test_size_limit_error_names_the_largest_value(monkeypatch):
    monkeypatch.setattr(codec, "STATE_BYTES_MAX", 1200)
    encode_state(LSTM)
    with pytest.raises(ValueError, match=r"limit is 1200\. Its largest value may be 'h'"):
        encode_state({**LSTM, "x": np.zeros(30)})


def test_format_of_version_1_is_stable():
    """Later releases must read states of earlier ones."""
    state = {
        "h": np.array([1.5, -2], "f4"),
        "n": 7,
        "t": "é",
        "l": [0.5, None],
        "o": np.array(["a", b"bc"], object),
    }
    written = (
        b"\x01w\xa1\x85\xa4=\x00\x00\x00"
        b'["h","<f4",[2],"n","q","t","s","l","[",2,"d","n","o","O",[2]]'
        + struct.pack("<qQd", 7, 2, 0.5)
        + struct.pack("<ff", 1.5, -2)
        + "é".encode()
        + struct.pack("<qq", 2, 5)
        + b"abc"
    )
    assert encode_state(state) == written
    assert same(decode_state(written), state)


@settings(max_examples=levels.examples(3))
@given(states, st.data())
def test_damaged_byte_is_detected(state, data):
    good = bytearray(encode_state(state))
    at = data.draw(st.integers(0, len(good) - 1))
    good[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ValueError, match="checkpoint"):
        decode_state(bytes(good))


def test_every_flipped_bit_is_detected():
    good = encode_state(LSTM)
    for at in range(len(good)):
        for bit in range(8):
            bad = bytearray(good)
            bad[at] ^= 1 << bit
            with pytest.raises(ValueError, match="checkpoint"):
                decode_state(bytes(bad))


def test_truncation_and_trailing_bytes_are_detected():
    good = encode_state(LSTM)
    for end in range(len(good)):
        with pytest.raises(ValueError, match="checkpoint"):
            decode_state(good[:end])
    for more in (b"\0", b" ", good):
        with pytest.raises(ValueError, match="checkpoint"):
            decode_state(good + more)


def _sealed(layout: bytes, rest: bytes = b"") -> bytes:
    """Return a forged state with a valid checksum."""
    body = struct.pack("<I", len(layout)) + layout + rest
    return struct.pack("<BI", 1, zlib.crc32(body)) + body


@for_each(
    ("layout", "rest"),
    [
        (b"", b""),
        (b"{}", b""),
        (b"7", b""),
        (b"[" * 100_000, b""),
        (b'["x"]', b""),
        (b'["x","?"]', b""),
        (b'["x","q"]', b"\0" * 9),
        (b'["x",["q"]]', b""),
        (b'["x","|O",[1]]', b"\1" * 8),
        (b'["x","O8",[1]]', b"\1" * 8),
        (b'["x","g","|O"]', b"\1" * 8),
        (b'["x","<f4,|O",[1]]', b"\1" * 12),
        (b'["x","f4",[1]]', b"\1" * 4),
        (b'["x","|V8",[1]]', b"\1" * 8),
        (b'["x","junk",[1]]', b""),
        (b'["x","<f4",[-1,-1]]', b"\0" * 4),
        (b'["x","<f4",[1.5]]', b"\0" * 6),
        (b'["x","<f4",[4611686018427387904]]', b""),
        (b'["x","<f4",1]', b""),
        (b'["x","<f4"]', b""),
        (b'["x","b"]', struct.pack("<Q", 2**63)),
        (b'["x","s"]', struct.pack("<Q", 1) + b"\xff"),
        (b'["x","O",[1]]', struct.pack("<q", -2)),
        (b'["x","O",[2]]', struct.pack("<qq", 2, 6) + b"abc"),
        (b'["x","O",[3]]', struct.pack("<qqq", 6, -2, 2) + b"abc"),
        (b'["x"' + b',"[",1' * (DEPTH_MAX + 1) + b',"n"]', b""),
        (b'["x","[",2,"n"]', b""),
        (b'["x","[",-1]', b""),
        (b'["x"' + b',"[",1' * 5000 + b',"n"]', b""),
        (b'["x","{",1,"[",0,"n"]', b""),
        (b'[1,"n"]', b""),
    ],
)
def test_forged_layout_is_refused(layout, rest):
    with pytest.raises(ValueError):
        decode_state(_sealed(layout, rest))


def test_later_version_is_refused():
    with pytest.raises(ValueError, match="version 2 cannot be read"):
        decode_state(b"\2" + encode_state({})[1:])
