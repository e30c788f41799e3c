"""Messages between an instance and its process survive their way: bootstraps, steps, streams, errors."""

from math import inf

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cases import for_each
from headrace.core import (
    InferRequest,
    InferResponse,
    Model,
    ModelMetadata,
    ModelRecipe,
    RowFailure,
    Tensor,
    TensorSpec,
)
from headrace.core.errors import (
    CancelledRequestError,
    CorruptError,
    DataError,
    InstanceLostError,
    LimitError,
    MissingExtraError,
    ModelContractError,
    ModelInputError,
    PredictError,
    SequenceGoneError,
    SequenceLostError,
)
from headrace.core.model import RowError
from headrace.core.sequence import SequenceEnd, SequenceLimits
from headrace.engine.bootstrap import Bootstrap, loaded_from_wire, loaded_to_wire
from headrace.engine.inputs import ModelInputs
from headrace.engine.model_errors import WHY_CHARS_MAX, RemoteError, describe_error
from headrace.engine.settings import ServeSettings
from headrace.engine.step_codec import (
    endings_from_wire,
    endings_to_wire,
    join_checkpoints,
    orders_from_wire,
    orders_to_wire,
    split_checkpoints,
)
from headrace.engine.stepper import SequenceEnding, StepOrder
from headrace.engine.stream_codec import pack_request, pack_response, unpack_requests, unpack_responses
from headrace.engine.wire_errors import error_from_wire, error_to_wire
from headrace.testing import EchoModel


def _through_json(values):
    return orjson.loads(orjson.dumps(values))


@for_each("names", [None, (), ("A", "B")])
def test_bootstrap_round_trip(names):
    boot = Bootstrap(
        recipe=ModelRecipe("a.b:c", {"x": [1, "y", None]}),
        name="m",
        version=None,
        fingerprint="f",
        settings=ServeSettings(
            isolation="process",
            max_batch_rows=7,
            call_timeout_s=2.5,
            environ_pass=names,
            sequences={"idle_ms": inf, "time_ms_max": None, "live_max": 3},
        ),
        log_level=20,
        parent_pid=1,
    )
    assert Bootstrap.from_wire(_through_json(boot.to_wire())) == boot


class _Declared(EchoModel):
    inputs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES"))

    def predict(self, x, t, mode=None):
        return x


class _Exact(EchoModel):
    """Has inputs of which everything but the rows is fixed."""

    inputs = (TensorSpec("x", "FP64", (-1, 3)), TensorSpec("n", "INT8", (-1,)))

    def predict(self, x, n):
        return x


class _Any(Model):
    def predict(self, *args):
        return args[0]


@for_each("model", [EchoModel(), _Declared(), _Exact(), _Any()])
def test_loaded_model_round_trip(model):
    """Requests are checked here with the signature that was read there."""
    inputs = ModelInputs.of(model, "m")
    metadata = ModelMetadata(
        "m", None, inputs=inputs.specs, outputs=(TensorSpec("o", "INT8", (-1,)),), can_stream=True
    )
    limits = SequenceLimits(5, inf, 7.5, evict_idle_ms=None, interleave=True)
    found = loaded_from_wire(_through_json(loaded_to_wire(metadata, inputs, limits)))
    assert found == (metadata, inputs, limits)


_NUMBERS = st.integers(0, 2**63)
_TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
_BLOBS = st.lists(st.one_of(st.none(), st.binary(max_size=9)), max_size=5)
_PARAMETERS = st.dictionaries(_TEXT, st.one_of(st.booleans(), st.integers(-9, 9), _TEXT), max_size=2)
_ORDERS = st.lists(
    st.builds(
        StepOrder,
        number=_NUMBERS,
        id=_TEXT,
        steps=_NUMBERS,
        again=st.booleans(),
        end=st.booleans(),
        parameters=_PARAMETERS,
        restore=st.one_of(st.none(), st.binary(max_size=9)),
        save=st.booleans(),
        request=_NUMBERS,
    ),
    max_size=4,
)
_ENDINGS = st.lists(
    st.builds(SequenceEnding, _NUMBERS, _TEXT, _NUMBERS, st.sampled_from(SequenceEnd)), max_size=4
)


def _message_round_trip(value):
    return orjson.loads(orjson.dumps(value))


@given(_ORDERS)
def test_orders_round_trip(orders):
    lengths, arrays = join_checkpoints([order.restore for order in orders])
    restores = split_checkpoints(_message_round_trip(lengths), arrays, len(orders))
    assert orders_from_wire(_message_round_trip(orders_to_wire(orders)), restores) == orders


@given(_BLOBS)
def test_checkpoints_round_trip(blobs):
    """An empty checkpoint differs from None; without one, no array is sent."""
    lengths, arrays = join_checkpoints(blobs)
    assert split_checkpoints(_message_round_trip(lengths), arrays, len(blobs)) == blobs
    assert bool(arrays) == any(blob is not None for blob in blobs)


@given(_ENDINGS)
def test_endings_round_trip(endings):
    found = endings_from_wire(_message_round_trip(endings_to_wire(endings)))
    assert found == endings
    assert all(type(ending.reason) is SequenceEnd for ending in found)


_TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
_PLAIN = st.dictionaries(
    _TEXTS, st.one_of(st.none(), st.booleans(), st.integers(-(2**53), 2**53), _TEXT), max_size=3
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
_RESPONSES = st.builds(InferResponse, _TENSORS, _TEXTS, st.none() | _TEXT, _TEXT, _PLAIN, _FAILURES)
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


def _round_trip(error):
    return error_from_wire(orjson.loads(orjson.dumps(error_to_wire(error))))


@for_each(
    "error",
    [
        ModelContractError("m", "why"),
        ModelInputError("m", "why"),
        PredictError("m", "why"),
        InstanceLostError("m", "why"),
        InstanceLostError("m", "why", cause="oom", signal="SIGKILL"),
        InstanceLostError("m", "why", cause="exit", exit_code=3),
        MissingExtraError("onnx", "an ONNX model"),
        SequenceLostError("s", "why"),
        SequenceGoneError("s", "why"),
        CancelledRequestError("gone"),
        LimitError("too much"),
        MemoryError("full"),
        SystemExit("3"),
        KeyboardInterrupt("now"),
    ],
)
def test_known_errors_keep_their_type(error):
    found = _round_trip(error)
    assert (type(found), str(found), found.__dict__) == (type(error), str(error), error.__dict__)


def test_row_errors_keep_their_reasons():
    """As text, cut."""

    found = _round_trip(RowError({0: "a", 7: KeyError("age"), 8: "x" * 9999, 10: "\ud800"}))
    assert isinstance(found, RowError)
    assert (found.rows[0], found.rows[7]) == ("a", "'age'")
    assert (len(found.rows[8]), found.rows[10]) == (WHY_CHARS_MAX, "?")


class _OwnMemoryError(MemoryError):
    pass


@for_each(
    "error",
    [
        ValueError("x"),
        ValueError("\ud800"),
        _OwnMemoryError("y"),
        CorruptError("z", byte=3),
        RemoteError("E: t"),
    ],
)
def test_other_errors_become_remote_errors(error):
    """Once: the description does not grow with each process."""
    found = _round_trip(error)
    assert type(found) is RemoteError
    assert describe_error(found) == describe_error(error).encode(errors="replace").decode()
    assert describe_error(_round_trip(found)) == describe_error(found)
