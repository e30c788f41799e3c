"""Requests and responses of streams survive their way to another process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cases import for_each
from headrace.core import InferRequest, InferResponse, RowFailure, Tensor
from headrace.core.errors import DataError
from headrace.engine.process.request_codec import (
    pack_request,
    pack_response,
    unpack_requests,
    unpack_responses,
)

_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_PLAIN = st.dictionaries(
    _TEXTS, st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), _TEXTS), max_size=3
)
_ARRAYS = st.one_of(
    npst.arrays(
        st.one_of(npst.boolean_dtypes(), npst.integer_dtypes(endianness="?"), npst.floating_dtypes()),
        npst.array_shapes(max_dims=3, min_side=0, max_side=3),
    ),
    npst.arrays(
        object,
        npst.array_shapes(max_dims=2, min_side=0, max_side=3),
        elements=st.one_of(_TEXTS, st.binary(max_size=8)),
    ),
)
_TENSORS = st.lists(st.builds(Tensor, _TEXTS, _ARRAYS), max_size=3).map(tuple)
_FAILURES = st.lists(st.builds(RowFailure, st.integers(0, 9), _TEXTS, st.integers(1, 9)), max_size=2).map(
    tuple
)
_RESPONSES = st.builds(InferResponse, _TENSORS, _TEXTS, st.none() | _TEXTS, _TEXTS, _PLAIN, _FAILURES)
_REQUESTS = st.builds(
    InferRequest,
    _TENSORS,
    _TEXTS,
    st.lists(_TEXTS).map(tuple),
    _PLAIN,
    st.none() | st.integers(0, 9),
    st.integers(1, 9),
)


def _same_tensors(found, expected):
    assert [t.name for t in found] == [t.name for t in expected]
    for one, other in zip(found, expected, strict=True):
        assert (one.data.dtype, one.data.shape) == (other.data.dtype, other.data.shape)
        if one.data.dtype.kind == "O":
            assert one.data.tolist() == other.data.tolist()
        else:
            assert one.data.tobytes() == other.data.tobytes()
        assert one.data.flags.aligned
        assert one.data.flags.writeable


@given(st.lists(_RESPONSES, max_size=4))
def test_responses_round_trip(items):
    """Many in one piece; their arrays are their own."""
    found = unpack_responses(memoryview(b"".join(map(pack_response, items))))
    for one, other in zip(found, items, strict=True):
        _same_tensors(one.outputs, other.outputs)
        for name in ("model_name", "model_version", "id", "parameters", "failures"):
            assert getattr(one, name) == getattr(other, name)


@given(st.lists(_REQUESTS, max_size=4))
def test_requests_round_trip(items):
    """With the same time left, on a clock with another origin."""
    found = unpack_requests(memoryview(b"".join(pack_request(i, 4.0) for i in items)), 104.0)
    for one, other in zip(found, items, strict=True):
        _same_tensors(one.inputs, other.inputs)
        for name in ("id", "outputs", "parameters", "priority"):
            assert getattr(one, name) == getattr(other, name)
        assert one.deadline == (None if other.deadline is None else other.deadline + 100)


def test_items_share_no_mutable_value():
    """A common header is parsed once."""
    item = InferResponse((), parameters={"a": 1})
    one, other = unpack_responses(memoryview(pack_response(item) * 2))
    one.parameters["a"] = 2
    assert other.parameters == {"a": 1}


@for_each(
    ("item", "error"),
    [
        (InferResponse((), parameters={"a": object()}), TypeError),
        (InferResponse((Tensor("x", np.array([1.5], object)),)), DataError),
        (InferResponse((Tensor("x", np.zeros(1, [("a", "f4")])),)), TypeError),
    ],
)
def test_unsendable_item_is_refused(item, error):
    with pytest.raises(error):
        pack_response(item)
