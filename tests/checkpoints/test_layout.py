"""Layouts: caching, and refusal of unsafe dtypes."""

import numpy as np
import pytest

from headrace.checkpoints import codec
from headrace.checkpoints.codec import NATIVE, decode_layout, dtype_name, encode_layout


def test_equal_layouts_are_cached():
    signature = ("h", "<f4", (2, 128), "n", "q")
    data, checksum, pack = encode_layout(signature)
    assert data == b'["h","<f4",[2,128],"n","q"]'
    assert encode_layout(("h", "<f4", (2, 128), "n", "q"))[2] is pack
    assert decode_layout(bytes(bytearray(data))) is decode_layout(data)
    assert pack(7) == (7).to_bytes(8, "little")
    assert encode_layout(("h", "<f4", (2, 127), "n", "q"))[1] != checksum


def test_growing_list_does_not_evict_cached_layouts():
    cached = encode_layout(("h", "q"))
    before = codec._cached_encode.cache_info().misses
    for count in range(600, 900):
        data, _, pack = encode_layout(("x", "[", count, *["q"] * count))
        assert len(pack(*range(count))) == decode_layout(data).numbers_bytes == 8 * count
    assert codec._cached_encode.cache_info().misses == before
    assert encode_layout(("h", "q")) is cached


def test_native_dtype_names():
    assert {NATIVE[np.dtype(code).num] for code in "?bhifd"} == {"|b1", "|i1", "<i2", "<i4", "<f4", "<f8"}
    assert not {np.dtype(code).num for code in "OSUVMm"} & NATIVE.keys()


def test_long_double_of_another_machine_is_refused():
    name = dtype_name(np.dtype("g"))
    assert decode_layout(f'["x","{name}",[1]]'.encode()).values[0][1][1] == np.dtype("g")
    plain = name.partition(":")[0]
    for other in (plain, f"{plain}:111"):
        with pytest.raises(ValueError, match="another kind of machine"):
            decode_layout(f'["x","{other}",[1]]'.encode())
