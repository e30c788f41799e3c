"""`Model.steps_undone` names the rows of each failed call, so that no resource of a step leaks."""

import functools
import itertools
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cases import for_each
from engine.sequences.sum_model import FaultyStore
from engine.slot_model import AsyncSlots, CancellableSlots, ClumsySlots, Slots
from engine.step_backends import cancelled_call, make_backend, order
from engine.support import WAIT_S, no_leaks, rows, serving
from headrace.core import InferRequest, Tensor, current_call
from headrace.core.errors import CancelledRequestError, ModelContractError, SequenceLostError
from headrace.core.model import RowError
from headrace.core.sequence import SequenceEnd
from headrace.engine import Engine
from headrace.engine.backend import CallInputs
from headrace.engine.model_methods import describe_error
from headrace.engine.settings import ServeSettings
from headrace.engine.stepper import SequenceEnding

pytestmark = pytest.mark.timeout(60)
both = pytest.mark.parametrize("kind", ["local", pytest.param("process", marks=pytest.mark.slow)])


@pytest.fixture
def made():
    """Yield a factory of backends, which are closed at the end."""
    backends = []

    def make(kind, model=Slots, **serve):
        backends.append(make_backend(kind, model, **serve))
        return backends[-1]

    with no_leaks():
        yield make
        for backend in backends:
            backend.close()


def step(backend, *orders, do="", call=None):
    """Do one step of each sequence; `do` for each, or for all."""
    do = [do] * len(orders) if isinstance(do, str) else do
    part = {"x": rows(*[1.0] * len(orders)), "do": np.array(do, object)}
    return backend.call(CallInputs((part,), len(orders), orders=orders), call or current_call())


def report(backend):
    """Return the report of the model, by a sequence of one step, whose slot is not counted."""
    stepped = step(backend, order(99, "report"))
    found = json.loads(stepped.outputs["report"][0])
    backend.end_sequences([SequenceEnding(99, "report", 1, SequenceEnd.ENDED)])
    return found["held"] - 1, found["undone"]


# Failed calls


@both
@for_each(
    ("do", "error", "says"),
    [
        ("fail", Exception, "ValueError: odd"),
        ("exit", Exception, ""),
        ("refuse", RowError, "row 1: refused"),
        ("lack", ModelContractError, "without any output"),
        ("unsaveable", ModelContractError, "cannot be saved"),
    ],
)
def test_failed_call_names_all_of_its_rows(made, kind, do, error, says):
    """Each with the state as the call left it, and the state with which its sequence continues."""
    backend = made(kind)
    step(backend, order(1, "a"))
    with pytest.raises(BaseException) as caught:
        step(backend, order(1, "a", 1), order(2, "b", save=True), order(3, "c"), do=["", do, ""])
    assert isinstance(caught.value, error) or do == "exit"
    assert says in describe_error(caught.value) or says in str(caught.value)
    reached = do not in ("fail", "exit")
    assert report(backend) == (1, [[[0, "a", 1, 2, 1], [1, "b", 0, 1, 0], [2, "c", 0, int(reached), 0]]])
    assert step(backend, order(1, "a", 1), order(2, "b")).outputs["slots"].tolist() == [2, 1]


@pytest.mark.slow
def test_unsendable_result_undoes_steps(made):
    """In the process of the model."""
    backend = made("process")
    with pytest.raises(ModelContractError, match="must be bytes or str"):
        step(backend, order(1, "a"), do="unsendable")
    assert report(backend) == (0, [[[0, "a", 0, 1, 0]]])


@both
@pytest.mark.parametrize("make", [CancellableSlots, AsyncSlots])
def test_cancelled_call_is_undone(made, kind, make, tmp_path):
    """The cancellation reaches neither a plain nor an asynchronous hook."""
    backend = made(kind, functools.partial(make, folder=str(tmp_path)))
    expected = CancelledRequestError if make is AsyncSlots else Exception
    with cancelled_call(backend, tmp_path) as call, pytest.raises(expected, match=r"cancel|no client"):
        step(backend, order(1, "a"), order(2, "b"), do=["", "wait"], call=call)
    assert report(backend) == (0, [[[0, "a", 0, 1, 0], [1, "b", 0, 1, 0]]])
    if kind == "local":
        assert backend._model.cancelled == [False]


@both
def test_hook_error_is_logged(made, kind, caplog):
    """The states are restored, and the error of the call is raised."""
    backend = made(kind, ClumsySlots)
    step(backend, order(1, "a"))
    with pytest.raises(Exception, match="odd"):
        step(backend, order(1, "a", 1), do="fail")
    assert report(backend)[0] == 1
    assert step(backend, order(1, "a", 1)).outputs["slots"].tolist() == [2]
    backend.close()
    assert caplog.text.count("steps_undone of a model failed") == 1


@both
def test_call_that_does_not_begin_is_not_undone(made, kind):
    backend = made(kind)
    with pytest.raises(SequenceLostError):
        step(backend, order(1, "a"), order(2, "b", 7))
    none = {"x": np.zeros((0, 1), np.float32), "do": np.array([], object)}
    backend.call(CallInputs((none,), 0), current_call())
    assert report(backend) == (0, [])


# Checkpoints


@both
def test_checkpoint_replaces_outdated_state(made, kind):
    """The state here is reported once, however often the step is repeated."""
    backend = made(kind)
    saved = step(backend, order(1, "a", save=True)).checkpoints[0]
    step(backend, order(1, "a", 1))
    for _ in range(2):
        with pytest.raises(Exception, match="odd"):
            step(backend, order(1, "a", 1, restore=saved), do="fail")
    held, undone = report(backend)
    assert (held, undone) == (1, [[[None, "a", 2, 2, 1]], *[[[0, "a", 1, 2, 1]]] * 2])
    backend.end_sequences([SequenceEnding(1, "a", 1, SequenceEnd.IDLE)])
    assert report(backend)[0] == 0


@both
def test_restart_replaces_outdated_state(made, kind):
    backend = made(kind)
    step(backend, order(1, "a"))
    stepped = step(backend, order(1, "a", 0, restore=b""))
    assert stepped.outputs["slots"].tolist() == [1]
    assert report(backend) == (1, [[[None, "a", 1, 1, 0]]])


@both
def test_failed_restart_is_repeated_without_checkpoint(made, kind):
    backend = made(kind)
    step(backend, order(1, "a"))
    with pytest.raises(Exception, match="odd"):
        step(backend, order(1, "a", 0, restore=b""), do="fail")
    assert step(backend, order(1, "a")).outputs["slots"].tolist() == [1]
    assert report(backend) == (1, [[[None, "a", 1, 1, 0]], [[0, "a", 0, 1, 0]]])


# Engines


def request(*do, tensors=(), **parameters):
    inputs = (Tensor("x", rows(*range(len(do)))), Tensor("do", np.array(do, object))) if do else ()
    return InferRequest((*inputs, *tensors), parameters=parameters)


def finish(engine, sent, *, strict=True):
    """Return the number of slots in the state after each row, or the name of the error."""
    future = engine.submit(sent, strict=strict)
    error = future.exception(WAIT_S)
    if error is not None:
        return type(error).__name__
    response = future.result()
    return response["slots"].tolist() if response.outputs else []


def shared(ids, do):
    """Return a request whose rows start sequences of their own, in one call."""
    n = len(ids)
    tensors = (Tensor("sequence_id", np.array(list(ids), object)), Tensor("sequence_start", np.ones(n, bool)))
    return request(*do, tensors=tensors)


@for_each("do", ["fail", "refuse"])
def test_bisection_undoes_each_failed_call_once(do):
    """A refused row undoes the other rows of its call too: they are called again."""
    model = Slots()
    with serving(model) as engine:
        assert finish(engine, shared("abc", ["", do, ""]), strict=False) == [1, 1]
        calls = list(model.calls)
        assert [id for _, id, *_ in model.undone[0]] == ["a", "b", "c"]
        undone_ids = [id for undone in model.undone for _, id, *_ in undone]
        for id in "abc":
            done = id != "b"
            assert sum(id in call for call in calls) - undone_ids.count(id) == done
        assert len(model.held) == 2
    assert model.held == set()


def make_engine(model, store):
    return Engine(
        lambda: model,
        name="m",
        serving=ServeSettings(isolation="thread"),
        open_checkpoints=lambda: store,
    )


def test_step_on_stale_state_is_undone():
    """The other server's state replaces this one's, with slots that are not this model's."""
    store = FaultyStore()
    here, there = Slots(), Slots()
    there._numbers = itertools.count(1000)
    with_both = make_engine(here, store), make_engine(there, store)
    for engine in with_both:
        engine.start()
    a, b = with_both
    try:
        assert finish(a, request("", sequence_id="s", sequence_start=True)) == [1]
        assert finish(b, request("", sequence_id="s")) == [2]
        assert finish(a, request("", sequence_id="s")) == [3]
        assert here.undone == [[(None, "s", 2, 2, 2)]]
        assert here.held == {0, 2}, "slot 1 was taken by the undone step"
    finally:
        for engine in with_both:
            engine.stop(drain=False)


@for_each("when", ["before", "after"])
def test_unsaved_step_is_undone_once_its_state_is_loaded(when):
    """Whether the store had saved it or not: the loaded state names the slots that remain."""
    store, model = FaultyStore(), Slots()
    engine = make_engine(model, store)
    engine.start()
    try:
        assert finish(engine, request("", sequence_id="s", sequence_start=True)) == [1]
        store.faults["save"] = when
        assert finish(engine, request("", sequence_id="s")) == "UnavailableError"
        store.faults.clear()
        restored = 1 if when == "before" else 2
        assert finish(engine, request("", sequence_id="s")) == [restored + 1]
        assert model.undone == [[(None, "s", 2, 2, restored)]]
        assert len(model.held) == restored + 1
        finish(engine, request(sequence_id="s", sequence_end=True))
    finally:
        engine.stop(drain=False)
    assert model.held == set()


_ROWS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.sampled_from(["", "", "", "fail", "refuse", "over", "lack", "exit"])
    ),
    min_size=1,
    max_size=5,
)
_EVENTS = st.lists(
    st.tuples(_ROWS, st.booleans(), st.sampled_from([None, None, "before", "after"])), max_size=5
)


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(_EVENTS, st.booleans())
def test_each_slot_is_freed_once(caplog, events, checkpoints):
    """After any mix of failures, ends and faults of the store."""
    store, model = FaultyStore(), Slots()
    caplog.clear()
    engine = (
        make_engine(model, store)
        if checkpoints
        else Engine(lambda: model, name="m", serving=ServeSettings(isolation="thread"))
    )
    engine.start()
    try:
        for planned, strict, fault in events:
            ids = [id for id, _ in planned]
            tensors = (Tensor("sequence_id", np.array(ids, object)),)
            auto = request(*[do for _, do in planned], tensors=tensors, sequence_start="auto")
            store.faults["save"] = fault
            finish(engine, auto, strict=strict)
            store.faults.clear()
    finally:
        engine.stop()
    assert model.held == set()
    assert "of a model failed" not in caplog.text
