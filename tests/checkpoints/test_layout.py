"""Layouts are made and read once where they stay the same, and never of dtypes that bytes cannot stand for."""

import numpy as np
import pytest

from headrace.checkpoints import layout
from headrace.checkpoints.layout import NATIVE, dtype_name, layout_of, read_layout


def test_a_layout_that_stays_the_same_is_made_and_read_once():
    signature = ("h", "<f4", (2, 128), "n", "q")
    data, checksum, pack = layout_of(signature)
    assert data == b'["h","<f4",[2,128],"n","q"]'
    assert layout_of(("h", "<f4", (2, 128), "n", "q"))[2] is pack
    assert read_layout(bytes(bytearray(data))) is read_layout(data)
    assert pack(7) == (7).to_bytes(8, "little")
    assert layout_of(("h", "<f4", (2, 127), "n", "q"))[1] != checksum


def test_a_list_that_grows_drives_no_other_layout_out():
    kept = layout_of(("h", "q"))
    before = layout._kept_made.cache_info().misses
    for count in range(600, 1200):
        data, _, pack = layout_of(("x", "[", count, *["q"] * count))
        assert len(pack(*range(count))) == read_layout(data).numbers_bytes == 8 * count
    assert layout._kept_made.cache_info().misses == before
    assert layout_of(("h", "q")) is kept


def test_native_dtypes_are_called_as_numpy_calls_them():
    assert {NATIVE[np.dtype(code).num] for code in "?bhifd"} == {"|b1", "|i1", "<i2", "<i4", "<f4", "<f8"}
    assert not {np.dtype(code).num for code in "OSUVMm"} & NATIVE.keys()


def test_a_long_double_of_another_machine_is_refused():
    name = dtype_name(np.dtype("g"))
    assert read_layout(f'["x","{name}",[1]]'.encode()).values[0][1][1] == np.dtype("g")
    plain = name.partition(":")[0]
    for other in (plain, f"{plain}:111"):
        with pytest.raises(ValueError, match="another kind of machine"):
            read_layout(f'["x","{other}",[1]]'.encode())
