"""Messages between an instance and its process arrive as they were sent."""

from dataclasses import replace
from math import inf
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core import Model, ModelMetadata, ModelRecipe, TensorSpec
from headrace.core.sequence import SequenceEnd, SequenceLimits
from headrace.engine.inputs import ModelInputs
from headrace.engine.process.messages import (
    CallMessage,
    CloseMessage,
    EndSequencesMessage,
    ErrorMessage,
    LoadedMessage,
    Message,
    OpaqueHeader,
    ResponseHeader,
    ResultMessage,
    StartMessage,
    decode_message,
    encode_message,
    join_blobs,
    split_blobs,
)
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding, StepOrder
from headrace.testing import EchoModel


class _Declared(EchoModel):
    inputs = (TensorSpec("x", "FP32", (-1, 3)), TensorSpec("t", "BYTES"))

    def predict(self, x, t, mode=None, *, scale=None):
        return x


class _Exact(EchoModel):
    """Has inputs of which everything but the rows is fixed."""

    inputs = (TensorSpec("x", "FP64", (-1, 3)), TensorSpec("n", "INT8", (-1,)))

    def predict(self, x, n):
        return x


class _Any(Model):
    def predict(self, *args):
        return args[0]


_INPUTS = [ModelInputs.of(model, "m") for model in (EchoModel(), _Declared(), _Exact(), _Any())]

_SIZES = st.integers(0, 2**63)
_SECONDS = st.floats(0, 1e9)
_TEXTS = st.text(st.characters(codec="utf-8"), max_size=5)
_OPTIONAL_TEXTS = st.none() | _TEXTS
_PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | _TEXTS,
    lambda values: st.lists(values, max_size=2) | st.dictionaries(_TEXTS, values, max_size=2),
    max_leaves=4,
)
_BY_NAME = st.dictionaries(_TEXTS, _PLAIN, max_size=2)
_HEADERS = st.dictionaries(_TEXTS, _TEXTS, max_size=2)
_FLAGS = st.tuples(st.booleans(), st.booleans(), st.booleans())
_ARRAYS = st.lists(
    st.tuples(_TEXTS, _TEXTS, st.lists(_SIZES, max_size=3), _SIZES, _SIZES, _OPTIONAL_TEXTS).map(list),
    max_size=2,
)
_BLOBS = st.lists(st.none() | st.binary(max_size=9), max_size=5)
_LENGTHS = st.none() | st.lists(st.none() | _SIZES, max_size=3)
_ORDERS = st.builds(
    StepOrder,
    number=_SIZES,
    id=_TEXTS,
    steps=_SIZES,
    again=st.booleans(),
    end=st.booleans(),
    parameters=_BY_NAME,
    restore=st.none(),
    save=st.booleans(),
    request=_SIZES,
    namespace=_TEXTS,
)
_IDLE_MS = st.floats(1e-3, 1e9) | st.just(inf)
_LIMITS = st.builds(
    SequenceLimits,
    live_max=st.integers(1, 9),
    idle_ms=_IDLE_MS,
    time_ms_max=st.none() | st.floats(1, 9),
    evict_idle_ms=st.none() | st.floats(1, 9),
    interleave=st.booleans(),
)
_SETTINGS = st.builds(
    ServeSettings,
    isolation=st.sampled_from([None, "process"]),
    max_batch_rows=st.none() | st.integers(1, 9),
    max_batch_delay_ms=st.none() | st.floats(0, 9),
    call_timeout_s=st.none() | st.floats(1, 9),
    memory_bytes_max=st.none() | st.integers(1, 2**50),
    environ_pass=st.none() | st.lists(st.sampled_from("AB")).map(tuple),
    sequences=st.fixed_dictionaries(
        {},
        optional={
            "idle_ms": _IDLE_MS,
            "time_ms_max": st.none() | st.floats(1, 9),
            "live_max": st.integers(1, 9),
        },
    ),
    warm_up=st.booleans(),
)
_METADATA = st.builds(
    ModelMetadata,
    _TEXTS,
    _OPTIONAL_TEXTS,
    inputs=st.sampled_from([inputs.specs for inputs in _INPUTS]),
    outputs=st.sampled_from([(), (TensorSpec("o", "INT8", (-1,)), TensorSpec("p", "BYTES"))]),
    can_stream=st.booleans(),
    is_stateful=st.booleans(),
)

_MESSAGES = {
    StartMessage: st.builds(
        StartMessage,
        recipe=st.builds(ModelRecipe, st.just("a.b:c"), _BY_NAME),
        name=_TEXTS,
        version=_OPTIONAL_TEXTS,
        fingerprint=_TEXTS,
        settings=_SETTINGS,
        log_level=st.integers(0, 50),
        parent_pid=_SIZES,
    ),
    CallMessage: st.builds(
        CallMessage,
        number=_SIZES,
        arena_bytes=_SIZES,
        deadline_s=st.none() | st.floats(-9, 9),
        rows=_SIZES,
        request_id=_TEXTS,
        arrays=_ARRAYS,
        orders=st.lists(_ORDERS, max_size=3),
        blobs=_ARRAYS,
        lengths=_LENGTHS,
        requests=st.lists(
            st.builds(
                OpaqueHeader,
                names=st.lists(_TEXTS, max_size=2),
                headers=_HEADERS,
                id=_TEXTS,
                priority=st.integers(1, 9),
                left_s=st.none() | st.floats(-9, 9),
            ),
            max_size=2,
        ),
    ),
    EndSequencesMessage: st.builds(
        EndSequencesMessage,
        number=_SIZES,
        endings=st.lists(
            st.builds(SequenceEnding, _SIZES, _TEXTS, _SIZES, st.sampled_from(SequenceEnd)), max_size=3
        ),
    ),
    CloseMessage: st.builds(CloseMessage),
    LoadedMessage: st.builds(LoadedMessage, _METADATA, st.sampled_from(_INPUTS), _LIMITS),
    ResultMessage: st.builds(
        ResultMessage,
        arena_bytes=_SIZES,
        keeps_inputs=st.booleans(),
        arrays=_ARRAYS,
        flags=st.lists(_FLAGS, max_size=3),
        blobs=_ARRAYS,
        lengths=_LENGTHS,
        input_s=_SECONDS,
        infer_s=_SECONDS,
        output_s=_SECONDS,
        responses=st.lists(
            st.builds(
                ResponseHeader,
                status=st.integers(100, 599),
                content_type=_TEXTS,
                headers=_HEADERS,
                chunked=st.none() | _SIZES,
            ),
            max_size=2,
        ),
        took_s=_SECONDS,
    ),
    ErrorMessage: st.builds(ErrorMessage, _BY_NAME, arena_bytes=_SIZES, keeps_inputs=st.booleans()),
}


def test_every_message_has_a_strategy():
    assert set(_MESSAGES) == set(get_args(Message))


@pytest.mark.parametrize("kind", _MESSAGES)
def test_message_round_trip(kind):
    """With the types of all of its values."""

    @given(_MESSAGES[kind])
    def check(message):
        sent = message
        if isinstance(message, LoadedMessage):
            sent = LoadedMessage.from_model(message.metadata, message.inputs, message.sequences)
        found = decode_message(memoryview(encode_message(sent)))
        assert found == message
        assert repr(found) == repr(message)

    check()


@for_each("inputs", _INPUTS)
def test_requests_are_checked_by_the_signature_of_the_other_side(inputs):
    """Its numpy types do not travel; they are made again."""
    sent = LoadedMessage.from_model(ModelMetadata("m"), inputs, SequenceLimits())
    assert sent.inputs.exact is None
    found = decode_message(encode_message(sent)).inputs
    assert found.exact == inputs.exact
    for one, other in zip(found.exact or (), inputs.exact or (), strict=True):
        assert one.dtype is other.dtype


_START = StartMessage(ModelRecipe("a.b:c"), "m", None, "", ServeSettings(), 20, 1)


def _started_with(**settings):
    return decode_message(encode_message(replace(_START, settings=ServeSettings(**settings)))).settings


@for_each("idle_ms", [inf, 5.0])
def test_idle_time_stays_infinite(idle_ms):
    """JSON has no infinity, and a sequence has no other way to say that it never idles out."""
    assert _started_with(sequences={"idle_ms": idle_ms}).sequences == {"idle_ms": idle_ms}
    loaded = LoadedMessage.from_model(ModelMetadata("m"), _INPUTS[0], SequenceLimits(idle_ms=idle_ms))
    assert decode_message(encode_message(loaded)).sequences.idle_ms == idle_ms


def test_other_infinite_limits_arrive_as_no_limit():
    found = _started_with(call_timeout_s=inf, cancel_grace_s=inf, sequences={"time_ms_max": inf})
    assert (found.call_timeout_s, found.cancel_grace_s, found.sequences) == (
        None,
        None,
        {"time_ms_max": None},
    )
    limits = SequenceLimits(time_ms_max=inf, evict_idle_ms=inf)
    loaded = LoadedMessage.from_model(ModelMetadata("m"), _INPUTS[0], limits)
    assert decode_message(encode_message(loaded)).sequences == SequenceLimits()


_ORDER = StepOrder(1, "a", 0, again=False, end=False, parameters={}, restore=None, save=False)


def _call(**settings):
    return CallMessage(1, 0, None, 1, "", [], [_ORDER._replace(**settings)])


@for_each("value", [object(), b"x", {"a"}, {1: 2}, 1 << 64, "\ud800", 1j])
def test_value_that_is_not_plain_is_refused(value):
    """Wherever it is."""
    for message in (
        _call(parameters={"k": [value]}),
        ErrorMessage({"why": value}),
        replace(_START, recipe=ModelRecipe("a.b:c", {"x": value})),
    ):
        with pytest.raises(TypeError):
            encode_message(message)


def test_checkpoint_does_not_travel_in_a_message():
    with pytest.raises(TypeError, match="bytes"):
        encode_message(_call(restore=b"state"))


def test_numpy_values_arrive_as_plain_values():
    """Clients may have made parameters of them."""
    found = decode_message(encode_message(_call(parameters={"k": np.float32(1.5), "n": np.arange(2)})))
    assert found.orders[0].parameters == {"k": 1.5, "n": [0, 1]}


@given(_BLOBS)
def test_blobs_are_split_as_they_were_joined(blobs):
    """An empty blob differs from None; without one, no array is sent."""
    lengths, arrays = join_blobs(blobs)
    found = ResultMessage(lengths=lengths)
    assert split_blobs(decode_message(encode_message(found)).lengths, arrays, len(blobs)) == blobs
    assert bool(arrays) == any(blob is not None for blob in blobs)
