"""Steps of states: each on all of them or on none; what is kept is the states' alone."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core import Model
from headrace.core.errors import SequenceLostError
from headrace.core.sequence import SequenceEnd
from headrace.engine.stepper import Ending, StepOrder, Stepper


class _Telling(Model):
    def __init__(self):
        self.ended = []

    def sequence_ended(self, state, why):
        self.ended.append((state.id, state.steps, dict(state), why))
        if state.id == "stuck":
            raise ValueError("stuck")


def _order(number, steps=0, **said):
    values = {"again": False, "end": False, "parameters": {}, "restore": None, "save": False, **said}
    return StepOrder(number, f"s{number}", steps, **values)


def _do(method):
    return method()


def _putting(**values):
    """What puts these into every state."""

    def call(states):
        for state in states:
            state.update(values)
        return {}

    return call


def _held(stepper, number):
    return stepper._states[number]


def test_a_step_is_told_as_it_was_ordered():
    stepper = Stepper(Model(), "m")
    outputs = {"y": np.ones(2)}

    def call(states):
        first, second = states
        first.go_on()
        second.skip_output()
        second.end_sequence()
        assert (second.parameters, second.end, first.again) == ({"p": 1}, True, True)
        return outputs

    found, said, saved = stepper.step([_order(1, again=True), _order(2, end=True, parameters={"p": 1})], call)
    assert found is outputs
    assert said == [(True, False, False), (False, True, True)]
    assert (saved, len(stepper)) == ([None, None], 2)
    assert [_held(stepper, number).steps for number in (1, 2)] == [1, 1]


def test_nobody_to_step_is_a_step_too():
    stepper = Stepper(Model(), "m")
    assert stepper.step([], lambda states: {"n": np.array(len(states))}) == ({"n": np.array(0)}, [], [])
    assert len(stepper) == 0


_PLAIN = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=3), st.just(np.arange(3))),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.tuples(inner, inner),
        st.sets(st.integers(), max_size=3),
        st.binary(max_size=3).map(bytearray),
    ),
    max_leaves=8,
)


def _text(value):
    """As text, arrays by their elements."""
    return repr({name: value[name] for name in sorted(value)})


def _spoil(value):
    """Change all that can be changed where it is."""
    if isinstance(value, np.ndarray):
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 9
    elif isinstance(value, dict):
        for one in value.values():
            _spoil(one)
        value["spoilt"] = 1
    elif isinstance(value, (list, tuple)):
        for one in value:
            _spoil(one)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, (set, bytearray)):
        value.clear()


@given(st.dictionaries(st.text(max_size=2), _PLAIN, max_size=4), st.sampled_from([ValueError, SystemExit]))
def test_whatever_a_step_does_to_a_state_is_undone(values, error):
    """Twice: what it is undone with is not spoilt either."""
    stepper = Stepper(Model(), "m")
    stepper.step([_order(1)], _putting(**values))
    was = _text(_held(stepper, 1))

    def call(states):
        assert _text(states[0]) == was
        for value in states[0].values():
            _spoil(value)
        states[0].pop(next(iter(values), ""), None)
        states[0]["more"], states[0].steps = 1, 7
        raise error

    for _ in range(2):
        with pytest.raises(error):
            stepper.step([_order(1, 1)], call)
        assert (_text(_held(stepper, 1)), _held(stepper, 1).steps) == (was, 1)


def test_a_step_counts_only_when_it_was_handed_on():
    stepper = Stepper(Model(), "m")

    def deliver(outputs, saved):
        assert (outputs, saved) == ({}, [None])
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        stepper.step([_order(1)], _putting(a=1), deliver)
    assert len(stepper) == 0
    stepper.step([_order(1)], _putting(a=1))
    with pytest.raises(OSError, match="full"):
        stepper.step([_order(1, 1)], _putting(a=2), deliver)
    assert _held(stepper, 1) == {"a": 1}


def test_one_that_is_not_here_keeps_the_others_from_nothing():
    """The call has not been made."""
    stepper = Stepper(Model(), "m")
    stepper.step([_order(1)], _putting())
    with pytest.raises(SequenceLostError) as caught:
        stepper.step([_order(1, 1), _order(2, 1)], pytest.fail)
    assert (caught.value.sequence_id, len(stepper)) == ("s2", 1)


# What is kept


@pytest.mark.parametrize("writeable", [True, False])
def test_a_view_keeps_nothing_alive_but_itself(writeable):
    """Whatever of a large batch it was: the batch goes."""
    stepper = Stepper(Model(), "m")
    rows = 64

    def call(states):
        batch = np.ones((rows, 1 << 14))
        batch.setflags(write=writeable)
        for state, row in zip(states, batch, strict=True):
            state["row"], state["held"] = row[:8], ([row[:8]], {"a": row[8:16]})
        return {}

    tracemalloc.start()
    try:
        stepper.step([_order(n) for n in range(rows)], call)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 1 << 20, "the batch is 8 MiB"
    for number in range(rows):
        (listed,), named = _held(stepper, number)["held"]
        for array in (_held(stepper, number)["row"], listed, named["a"]):
            assert array.base is None
            assert not array.flags.writeable


def test_what_a_model_has_besides_is_still_its_own():
    """It writes into its buffer, and returns its array, and no state changes."""
    stepper = Stepper(Model(), "m")
    buffer = np.zeros(2)
    stepper.step([_order(1)], _putting(a=buffer, b=buffer[:], c=[buffer]))
    buffer[:] = 5
    state = _held(stepper, 1)
    assert [*state["a"], *state["b"], *state["c"][0]] == [0] * 6


def test_what_cannot_change_is_not_copied():
    """Nor what a step leaves as it is."""
    stepper = Stepper(Model(), "m")
    fixed = np.ones(2)
    fixed.setflags(write=False)
    stepper.step([_order(1)], _putting(a=fixed, b=np.ones(2), c=[fixed]))
    was = dict(_held(stepper, 1))
    assert was["a"] is was["c"][0] is fixed
    stepper.step([_order(1, 1)], _putting())
    assert all(_held(stepper, 1)[name] is value for name, value in was.items())


# Ends


def test_an_end_is_told_with_the_state_and_then_it_is_gone():
    model = _Telling()
    stepper = Stepper(model, "m")
    stepper.step([_order(1), _order(2)], _putting(a=3))
    stepper.end(
        [
            Ending(1, "s1", 1, SequenceEnd.IDLE),
            Ending(2, "s2", 1, SequenceEnd.ENDED),
            Ending(3, "s3", 4, SequenceEnd.INSTANCE_LOST),
        ],
        _do,
    )
    assert model.ended == [
        ("s1", 1, {"a": 3}, SequenceEnd.IDLE),
        ("s2", 1, {"a": 3}, SequenceEnd.ENDED),
        ("s3", 4, {}, SequenceEnd.INSTANCE_LOST),
    ]
    assert len(stepper) == 0


def test_what_a_model_raises_at_an_end_is_logged(caplog):
    model = _Telling()
    stepper = Stepper(model, "m")
    endings = [Ending(n, id, 1, SequenceEnd.ENDED) for n, id in enumerate(("stuck", "b"))]
    stepper.end(endings, _do)
    assert [id for id, *_ in model.ended] == ["stuck", "b"]
    (record,) = caplog.records
    assert (record.getMessage(), record.model, record.sequence) == (
        "a model failed to end a sequence",
        "m",
        "stuck",
    )


def test_a_model_that_hears_of_no_end_is_not_called():
    stepper = Stepper(Model(), "m")
    stepper.step([_order(1)], _putting(a=3))
    stepper.end([Ending(1, "s1", 1, SequenceEnd.IDLE)], pytest.fail)
    assert len(stepper) == 0
