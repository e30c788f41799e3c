"""Steps of states: all or none change, and stored values are private."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from headrace.core import Model
from headrace.core.errors import SequenceLostError
from headrace.core.sequence import SequenceEnd
from headrace.engine.stepper import SequenceEnding, StepOrder, Stepper


class _Reporting(Model):
    def __init__(self):
        self.ended = []

    def sequence_ended(self, state, why):
        self.ended.append((state.id, state.steps, dict(state), why))
        if state.id == "stuck":
            raise ValueError("stuck")


def _order(number, steps=0, **flags):
    values = {"again": False, "end": False, "parameters": {}, "restore": None, "save": False, **flags}
    return StepOrder(number, f"s{number}", steps, **values)


def _store_values(**values):
    """Return a call that puts these values into every state."""

    def call(states):
        for state in states:
            state.update(values)
        return {}

    return call


def _state_of(stepper, number):
    return stepper._states[number]


def test_state_describes_its_order():
    stepper = Stepper(Model(), "m")
    outputs = {"y": np.ones(2)}

    def call(states):
        first, second = states
        first.reschedule()
        second.skip_output()
        second.end_sequence()
        assert (second.parameters, second.end, first.again) == ({"p": 1}, True, True)
        return outputs

    found, flags, saved = stepper.step(
        [_order(1, again=True), _order(2, end=True, parameters={"p": 1})], call
    )
    assert found is outputs
    assert flags == [(True, False, False), (False, True, True)]
    assert (saved, len(stepper)) == ([None, None], 2)
    assert [_state_of(stepper, number).steps for number in (1, 2)] == [1, 1]


def test_state_of_a_namespace_has_a_unique_id():
    """An error names the id that the client knows."""
    stepper = Stepper(Model(), "m")
    found = []
    for flags in ({}, {"restore": b""}):
        stepper.step([_order(1, namespace="shop", **flags)], lambda states: found.append(states[0].id) or {})
    assert found == ["shop/s1", "shop/s1"]
    for flags in ({"restore": b"x"}, {"steps": 5}):
        with pytest.raises(SequenceLostError) as raised:
            stepper.step([_order(1, namespace="shop", **flags)], lambda _: {})
        assert raised.value.sequence_id == "s1"


def test_step_without_orders():
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


def _describe(value):
    """Return the values as text, arrays by their elements."""
    return repr({name: value[name] for name in sorted(value)})


def _corrupt(value):
    """Change all that can be changed in place."""
    if isinstance(value, np.ndarray):
        with pytest.raises(ValueError, match="read-only"):
            value[...] = 9
    elif isinstance(value, dict):
        for one in value.values():
            _corrupt(one)
        value["spoilt"] = 1
    elif isinstance(value, (list, tuple)):
        for one in value:
            _corrupt(one)
        if isinstance(value, list):
            value.append("spoilt")
    elif isinstance(value, (set, bytearray)):
        value.clear()


@given(st.dictionaries(st.text(max_size=2), _PLAIN, max_size=4), st.sampled_from([ValueError, SystemExit]))
def test_failed_step_restores_states(values, error):
    """Twice: the copy to undo with is not corrupted either."""
    stepper = Stepper(Model(), "m")
    stepper.step([_order(1)], _store_values(**values))
    was = _describe(_state_of(stepper, 1))

    def call(states):
        assert _describe(states[0]) == was
        for value in states[0].values():
            _corrupt(value)
        states[0].pop(next(iter(values), ""), None)
        states[0]["more"], states[0].steps = 1, 7
        raise error

    for _ in range(2):
        with pytest.raises(error):
            stepper.step([_order(1, 1)], call)
        assert (_describe(_state_of(stepper, 1)), _state_of(stepper, 1).steps) == (was, 1)


def test_failed_delivery_undoes_step():
    stepper = Stepper(Model(), "m")

    def deliver(outputs, saved):
        assert (outputs, saved) == ({}, [None])
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        stepper.step([_order(1)], _store_values(a=1), deliver)
    assert len(stepper) == 0
    stepper.step([_order(1)], _store_values(a=1))
    with pytest.raises(OSError, match="full"):
        stepper.step([_order(1, 1)], _store_values(a=2), deliver)
    assert _state_of(stepper, 1) == {"a": 1}


def test_missing_state_harms_no_other():
    """The call has not been made."""
    stepper = Stepper(Model(), "m")
    stepper.step([_order(1)], _store_values())
    with pytest.raises(SequenceLostError) as caught:
        stepper.step([_order(1, 1), _order(2, 1)], pytest.fail)
    assert (caught.value.sequence_id, len(stepper)) == ("s2", 1)


# Stored values


@for_each("writeable", [True, False])
def test_stored_view_is_copied(writeable):
    """So that a large batch is not kept alive."""
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
        (listed,), named = _state_of(stepper, number)["held"]
        for array in (_state_of(stepper, number)["row"], listed, named["a"]):
            assert array.base is None
            assert not array.flags.writeable


def test_model_objects_are_not_frozen():
    """The model writes into its buffer and returns its array; no state changes."""
    stepper = Stepper(Model(), "m")
    buffer = np.zeros(2)
    stepper.step([_order(1)], _store_values(a=buffer, b=buffer[:], c=[buffer]))
    buffer[:] = 5
    state = _state_of(stepper, 1)
    assert [*state["a"], *state["b"], *state["c"][0]] == [0] * 6


def test_immutable_values_are_not_copied():
    """Nor values that a step leaves unchanged."""
    stepper = Stepper(Model(), "m")
    fixed = np.ones(2)
    fixed.setflags(write=False)
    stepper.step([_order(1)], _store_values(a=fixed, b=np.ones(2), c=[fixed]))
    was = dict(_state_of(stepper, 1))
    assert was["a"] is was["c"][0] is fixed
    stepper.step([_order(1, 1)], _store_values())
    assert all(_state_of(stepper, 1)[name] is value for name, value in was.items())


# Endings


def test_ending_reports_state_and_drops_it():
    model = _Reporting()
    stepper = Stepper(model, "m")
    stepper.step([_order(1), _order(2)], _store_values(a=3))
    stepper.end(
        [
            SequenceEnding(1, "s1", 1, SequenceEnd.IDLE),
            SequenceEnding(2, "s2", 1, SequenceEnd.ENDED),
            SequenceEnding(3, "s3", 4, SequenceEnd.INSTANCE_LOST),
        ]
    )
    assert model.ended == [
        ("s1", 1, {"a": 3}, SequenceEnd.IDLE),
        ("s2", 1, {"a": 3}, SequenceEnd.ENDED),
        ("s3", 4, {}, SequenceEnd.INSTANCE_LOST),
    ]
    assert len(stepper) == 0


def test_sequence_ended_error_is_logged(caplog):
    model = _Reporting()
    stepper = Stepper(model, "m")
    endings = [SequenceEnding(n, id, 1, SequenceEnd.ENDED) for n, id in enumerate(("stuck", "b"))]
    stepper.end(endings)
    assert [id for id, *_ in model.ended] == ["stuck", "b"]
    (record,) = caplog.records
    assert (record.getMessage(), record.model, record.sequence) == (
        "sequence_ended of a model failed",
        "m",
        "stuck",
    )


def test_model_without_hooks_is_not_called():
    stepper = Stepper(Model(), "m", pytest.fail)
    stepper.step([_order(1)], _store_values(a=3))
    with pytest.raises(AttributeError):
        stepper.step([_order(1, 1)], lambda states: states.missing)
    stepper.step([_order(1, 0, restore=b"")], _store_values(a=3))
    stepper.end([SequenceEnding(1, "s1", 1, SequenceEnd.IDLE)])
    assert len(stepper) == 0
