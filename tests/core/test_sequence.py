"""What a model is given of its sequences, their limits, and what requests say of them."""

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headrace.core.errors import ConfigError, DataError
from headrace.core.sequence import (
    NO_SEQUENCE,
    SEQUENCE_ID_CHARS_MAX,
    SequenceAsk,
    SequenceLimits,
    SequenceState,
    States,
    sequence_id_of,
)

# Limits


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"live_max": 0}, "live_max of sequences must be a whole number of 1 or more"),
        ({"requests_max": -1}, "requests_max"),
        ({"live_max": 2.5}, "live_max of sequences must be a whole number"),
        ({"idle_ms": 0}, "idle_ms of sequences must be above 0"),
        ({"idle_ms": nan}, "idle_ms"),
        ({"time_ms_max": -1}, "time_ms_max"),
        ({"evict_idle_ms": 0}, "evict_idle_ms"),
    ],
)
def test_limits_that_leave_no_room_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        SequenceLimits(**values)
    with pytest.raises(ConfigError, match=says):
        SequenceLimits().changed(values)


def test_limits_are_set_anew_by_name():
    limits = SequenceLimits(live_max=3, time_ms_max=7.0)
    assert limits.changed({}) == limits
    changed = limits.changed({"idle_ms": inf, "time_ms_max": None, "interleave": True})
    assert changed == SequenceLimits(live_max=3, idle_ms=inf, interleave=True)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"idle": 3}, "sequences have no limit idle; there are live_max, idle_ms"),
        ({"idle_ms": None}, "idle_ms of sequences cannot be None"),
        ({"live_max": True}, "live_max of sequences cannot be True"),
        ({"requests_max": "3"}, "requests_max of sequences cannot be '3'"),
        ({"interleave": 1}, "interleave of sequences cannot be 1"),
        ({"interleave": None}, "interleave of sequences cannot be None"),
    ],
)
def test_limits_of_other_kinds_are_refused(values, says):
    with pytest.raises(ConfigError, match=says):
        SequenceLimits().changed(values)


# What a request says


@pytest.mark.parametrize(
    ("parameters", "ask"),
    [
        ({}, NO_SEQUENCE),
        ({"priority": 3}, NO_SEQUENCE),
        ({"sequence_id": ""}, NO_SEQUENCE),
        ({"sequence_id": 0, "sequence_end": False}, NO_SEQUENCE),
        ({"sequence_id": 7}, SequenceAsk("7")),
        ({"sequence_id": np.uint64(2**64 - 1)}, SequenceAsk(str(2**64 - 1))),
        ({"sequence_id": -7, "sequence_start": True}, SequenceAsk("-7", start=True)),
        ({"sequence_id": "a", "sequence_start": "auto"}, SequenceAsk("a", auto=True)),
        ({"sequence_id": "a", "sequence_end": True}, SequenceAsk("a", end=True)),
        ({"sequence_id": "ü", "sequence_cancel": True}, SequenceAsk("ü", cancel=True)),
        ({"sequence_start": True}, SequenceAsk(start=True)),
    ],
)
def test_parameters_say_what_is_asked(parameters, ask):
    assert SequenceAsk.of(parameters) == ask


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"sequence_id": 1.0}, "sequence_id must be text or a whole number, not 1.0"),
        ({"sequence_id": True}, "sequence_id must be text or a whole number, not True"),
        ({"sequence_id": None}, "not None"),
        ({"sequence_id": b"\xff"}, "is no UTF-8"),
        ({"sequence_id": "x" * 257}, "has 257 characters; at most 256"),
        ({"sequence_start": 1}, 'sequence_start must be true, false or "auto", not 1'),
        ({"sequence_start": "yes"}, "not 'yes'"),
        ({"sequence_end": "auto"}, "sequence_end must be true or false, not 'auto'"),
        ({"sequence_id": "a", "sequence_cancel": None}, "sequence_cancel must be true or false"),
        ({"sequence_cancel": True}, "sequence_cancel needs the sequence_id"),
        ({"sequence_cancel": True, "sequence_id": 0}, "sequence_cancel needs the sequence_id"),
    ],
)
def test_parameters_of_other_kinds_are_refused(parameters, says):
    with pytest.raises(DataError) as caught:
        SequenceAsk.of(parameters)
    assert says in str(caught.value)
    assert len(str(caught.value)) < 120


@given(st.one_of(st.text(max_size=SEQUENCE_ID_CHARS_MAX), st.integers(1)))
def test_an_id_is_the_same_as_text_as_bytes_and_as_a_number(id):
    found = sequence_id_of(id)
    assert found == str(id)
    assert sequence_id_of(found.encode(errors="surrogatepass")) == found


# States


def _states(*values):
    return States([SequenceState(str(n), {} if v is None else {"v": v}) for n, v in enumerate(values)])


_KINDS = st.sampled_from([np.dtype(k) for k in ("f4", "f8", "i8", "u1", "?", "S3", "U3", ">i4")])


@given(st.data(), st.lists(st.integers(0, 3), max_size=3).map(tuple), _KINDS, st.integers(0, 4))
def test_what_is_kept_is_stacked_again(data, shape, dtype, count):
    """Along any axis, bit by bit; each state has an array of its own, which nobody writes into."""
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
def test_a_state_that_has_none_yet_counts_as_zeros(there, axis):
    """And is as it would be alone: company changes neither its values nor their type."""
    one = np.ones((2, 3), np.float32)
    stacked = _states(*[one if has else None for has in there]).stack("v", (2, 3), np.float64, axis=axis)
    expected = np.stack([one if has else one * 0 for has in there], axis=axis)
    assert stacked.dtype == np.float64
    assert np.array_equal(stacked, expected)


def test_plain_numbers_and_text_are_stacked():
    """Python's take the type that is asked for."""
    assert _states(1, None, np.float32(0.5)).stack("v").tolist() == [1.0, 0.0, 0.5]
    assert _states(0.1, None).stack("v").dtype == np.float32
    assert _states("ab", b"\xff").stack("v", (), object).tolist() == ["ab", b"\xff"]
    words = _states(None, None)
    words.keep("v", np.array(["a", None], object))
    assert [state["v"] for state in words] == ["a", None]


def test_what_does_not_fit_together_is_not_stacked():
    """Nor rounded without a word, and whoever else is in the batch."""
    with pytest.raises(ValueError, match=r"differs in shape: \[4, 2\] and \[2, 2\]"):
        _states(np.ones((4, 2)), np.ones((2, 2))).stack("v", (3, 2), np.float64)
    with pytest.raises(ValueError, match=r"differs in shape: \[2\] and \[3\]"):
        _states(np.ones(2), None).stack("v", (3,), np.float64)
    for axis in (0, 1):
        with pytest.raises(ValueError, match="'v' of the states is float64, which does not become float32"):
            _states(np.ones(2)).stack("v", (2,), axis=axis)
    with pytest.raises(ValueError, match="int64"):
        _states(np.int64(3)).stack("v")


def test_slices_are_as_many_as_states():
    with pytest.raises(ValueError, match=r"'v' has 3 slices along axis 1 for 2 states"):
        _states(None, None).keep("v", np.ones((2, 3)), axis=1)


def test_what_a_model_said_of_a_step_is_forgotten_by_the_next():
    state = SequenceState("a")
    state.begin(0, again=False, end=True, parameters={"p": 1})
    assert (state.start, state.end, state.parameters, state.told()) == (True, True, {"p": 1}, (False,) * 3)
    state.go_on()
    state.skip_output()
    state.end_sequence()
    assert state.told() == (True, True, True)
    state.begin(1, again=True, end=False, parameters={})
    assert (state.start, state.again, state.end, state.steps, state.told()) == (
        False,
        True,
        False,
        1,
        (False,) * 3,
    )
