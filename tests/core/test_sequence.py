"""Sequences: limits, request parameters and states."""

from dataclasses import replace
from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from cases import for_each
from headrace.core.errors import ConfigError, DataError
from headrace.core.sequence import (
    NO_SEQUENCE,
    SEQUENCE_ID_CHARS_MAX,
    SequenceControl,
    SequenceLimits,
    SequenceState,
    States,
    parse_sequence_id,
)

# Limits


@for_each(
    ("values", "message"),
    [
        ({"live_max": 0}, "live_max must be a whole number of 1 or more"),
        ({"requests_max": -1}, "requests_max"),
        ({"live_max": 2.5}, "live_max must be a whole number"),
        ({"idle_ms": 0}, "idle_ms must be a number above 0"),
        ({"idle_ms": nan}, "idle_ms"),
        ({"time_ms_max": -1}, "time_ms_max"),
        ({"evict_idle_ms": 0}, "evict_idle_ms"),
    ],
)
def test_limits_out_of_range_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        SequenceLimits(**values)
    with pytest.raises(ConfigError, match=message):
        SequenceLimits().with_values(values)


def test_with_values_replaces_limits():
    limits = SequenceLimits(live_max=3, time_ms_max=7.0)
    assert limits.with_values({}) == limits
    changed = limits.with_values({"idle_ms": inf, "time_ms_max": None, "interleave": True})
    assert changed == SequenceLimits(live_max=3, idle_ms=inf, interleave=True)


@for_each(
    ("values", "message"),
    [
        ({"idle": 3}, "unknown sequence limit idle; the limits are live_max, idle_ms"),
        ({"idle_ms": None}, "idle_ms must be a number above 0, not None"),
        ({"live_max": True}, "live_max must be a whole number of 1 or more, not True"),
        ({"requests_max": "3"}, "requests_max must be a whole number of 1 or more, not '3'"),
        ({"interleave": 1}, "interleave must be true or false, not 1"),
        ({"interleave": None}, "interleave must be true or false, not None"),
    ],
)
def test_unknown_or_mistyped_limits_are_refused(values, message):
    with pytest.raises(ConfigError, match=message):
        SequenceLimits().with_values(values)


# Request parameters


@for_each(
    ("parameters", "control"),
    [
        ({}, NO_SEQUENCE),
        ({"priority": 3}, NO_SEQUENCE),
        ({"sequence_id": ""}, NO_SEQUENCE),
        ({"sequence_id": 0, "sequence_end": False}, NO_SEQUENCE),
        ({"sequence_id": 7}, SequenceControl("7")),
        ({"sequence_id": np.uint64(2**64 - 1)}, SequenceControl(str(2**64 - 1))),
        ({"sequence_id": -7, "sequence_start": True}, SequenceControl("-7", start=True)),
        ({"sequence_id": "a", "sequence_start": "auto"}, SequenceControl("a", auto=True)),
        ({"sequence_id": "a", "sequence_end": True}, SequenceControl("a", end=True)),
        ({"sequence_id": "ü", "sequence_cancel": True}, SequenceControl("ü", cancel=True)),
        ({"sequence_start": True}, SequenceControl(start=True)),
    ],
)
def test_control_from_parameters(parameters, control):
    assert SequenceControl.from_parameters(parameters) == control
    assert SequenceControl.from_parameters(parameters, "shop") == replace(control, namespace="shop")


@for_each(
    ("namespace", "id", "qualified_id"),
    [("", "a", "a"), ("", "a/b", "a/b"), ("shop", "a", "shop/a"), ("shop", "", ""), ("", "", "")],
)
def test_qualified_id_has_the_namespace(namespace, id, qualified_id):
    assert SequenceControl(id, namespace=namespace).qualified_id == qualified_id


@for_each(
    ("parameters", "message"),
    [
        ({"sequence_id": 1.0}, "sequence_id must be text or a whole number, not 1.0"),
        ({"sequence_id": True}, "sequence_id must be text or a whole number, not True"),
        ({"sequence_id": None}, "not None"),
        ({"sequence_id": b"\xff"}, "is not UTF-8"),
        ({"sequence_id": "x" * 257}, "has 257 characters; the limit is 256"),
        ({"sequence_start": 1}, 'sequence_start must be true, false or "auto", not 1'),
        ({"sequence_start": "yes"}, "not 'yes'"),
        ({"sequence_end": "auto"}, "sequence_end must be true or false, not 'auto'"),
        ({"sequence_id": "a", "sequence_cancel": None}, "sequence_cancel must be true or false"),
        ({"sequence_cancel": True}, "sequence_cancel needs a sequence_id"),
        ({"sequence_cancel": True, "sequence_id": 0}, "sequence_cancel needs a sequence_id"),
    ],
)
def test_invalid_parameters_are_refused(parameters, message):
    with pytest.raises(DataError) as caught:
        SequenceControl.from_parameters(parameters)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 120


@given(st.one_of(st.text(max_size=SEQUENCE_ID_CHARS_MAX), st.integers(1)))
def test_sequence_id_from_text_bytes_and_number(id):
    found = parse_sequence_id(id)
    assert found == str(id)
    assert parse_sequence_id(found.encode(errors="surrogatepass")) == found


# States


def _states(*values):
    return States([SequenceState(str(n), {} if v is None else {"v": v}) for n, v in enumerate(values)])


_KINDS = st.sampled_from([np.dtype(k) for k in ("f4", "f8", "i8", "u1", "?", "S3", "U3", ">i4")])


@given(st.data(), st.lists(st.integers(0, 3), max_size=3).map(tuple), _KINDS, st.integers(0, 4))
def test_stack_returns_the_kept_values(data, shape, dtype, count):
    """Bit by bit along any axis. Each state has a read-only array of its own."""
    axis = data.draw(st.integers(-len(shape) - 1, len(shape)))
    whole = data.draw(npst.arrays(dtype, (count, *shape)))
    stacked = np.moveaxis(whole, 0, axis)
    states = _states(*[None] * count)
    states.keep("v", stacked, axis=axis)
    for row, state in enumerate(states):
        assert np.asarray(state["v"]).tobytes() == whole[row].tobytes()
        if shape:
            assert state["v"].base is None
            assert not state["v"].flags.writeable
    found = states.stack("v", shape, dtype, axis=axis)
    assert (found.shape, found.dtype, found.tobytes()) == (stacked.shape, dtype, stacked.tobytes())
    assert found.flags.writeable


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.integers(-3, 2))
def test_missing_value_stacks_as_zeros(there, axis):
    """Other states in the batch change neither the values nor the dtype."""
    one = np.ones((2, 3), np.float32)
    stacked = _states(*[one if has else None for has in there]).stack("v", (2, 3), np.float64, axis=axis)
    expected = np.stack([one if has else one * 0 for has in there], axis=axis)
    assert stacked.dtype == np.float64
    assert np.array_equal(stacked, expected)


def test_plain_values_are_stacked():
    """Python numbers take the requested dtype."""
    assert _states(1, None, np.float32(0.5)).stack("v").tolist() == [1.0, 0.0, 0.5]
    assert _states(0.1, None).stack("v").dtype == np.float32
    assert _states("ab", b"\xff").stack("v", (), object).tolist() == ["ab", b"\xff"]
    words = _states(None, None)
    words.keep("v", np.array(["a", None], object))
    assert [state["v"] for state in words] == ["a", None]


def test_incompatible_values_are_not_stacked():
    """Values are not rounded silently, whichever states are in the batch."""
    with pytest.raises(ValueError, match=r"differs in shape: \[4, 2\] and \[2, 2\]"):
        _states(np.ones((4, 2)), np.ones((2, 2))).stack("v", (3, 2), np.float64)
    with pytest.raises(ValueError, match=r"differs in shape: \[2\] and \[3\]"):
        _states(np.ones(2), None).stack("v", (3,), np.float64)
    for axis in (0, 1):
        with pytest.raises(ValueError, match="'v' of the states is float64, not convertible to float32"):
            _states(np.ones(2)).stack("v", (2,), axis=axis)
    with pytest.raises(ValueError, match="int64"):
        _states(np.int64(3)).stack("v")


def test_keep_needs_one_slice_for_each_state():
    with pytest.raises(ValueError, match=r"'v' has 3 slices along axis 1 for 2 states"):
        _states(None, None).keep("v", np.ones((2, 3)), axis=1)


def test_begin_step_resets_the_flags():
    state = SequenceState("a")
    state.begin_step(0, again=False, end=True, parameters={"p": 1})
    assert (state.start, state.end, state.parameters, state.step_flags()) == (
        True,
        True,
        {"p": 1},
        (False,) * 3,
    )
    state.reschedule()
    state.skip_output()
    state.end_sequence()
    assert state.step_flags() == (True, True, True)
    state.begin_step(1, again=True, end=False, parameters={})
    assert (state.start, state.again, state.end, state.steps, state.step_flags()) == (
        False,
        True,
        False,
        1,
        (False,) * 3,
    )


def test_go_on_warns_and_reschedules():
    state = SequenceState("a")
    with pytest.warns(DeprecationWarning, match=r"call reschedule\(\)"):
        state.go_on()
    assert state.step_flags() == (True, False, False)
