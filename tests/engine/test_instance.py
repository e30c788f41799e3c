"""One instance: loads, warms up, calls in pieces, and blames only guilty rows."""

import asyncio
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.support import request, rows, ticket
from headrace.core import Model, RowError
from headrace.core.errors import (
    CancelledRequestError,
    ModelContractError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    StoppedError,
)
from headrace.engine.backend import LocalBackend
from headrace.engine.instance import Instance
from headrace.engine.reason import WHY_CHARS_MAX, ToldError
from headrace.testing import ManualClock, PickyModel


def _instance(model: Model) -> Instance:
    return Instance(LocalBackend(lambda: model, "m"), "m", ManualClock())


def _answer(model: Model, x, **settings):
    return _instance(model).answer(ticket(request(x, **settings)), lambda _: None)


def _values(response) -> list[float]:
    return [] if not response.outputs else response.outputs[0].data[:, 0].tolist()


# Answers


def test_a_request_goes_in_calls_of_max_batch_rows():
    """Split, called in order, joined."""
    model = PickyModel(())
    model.max_batch_rows = 4
    response = _answer(model, rows(*range(10)), id="r")
    assert model.batch_rows == [4, 4, 2]
    assert _values(response) == list(range(10))
    assert (response.id, response.model_name, response.failures) == ("r", "m", ())


def test_no_rows_need_no_call():
    """The law holds of an empty request too."""
    model = PickyModel(())
    response = _answer(model, np.zeros((0, 1), np.float32))
    assert (response.outputs, response.failures, model.batch_rows) == ((), (), [])


@pytest.mark.parametrize("names_rows", [False, True])
def test_guilty_rows_fail_alone(names_rows):
    """Whether the model raises on the batch, or names them; in the second piece too."""
    model = PickyModel({1.0, 6.0}, names_rows=names_rows)
    model.max_batch_rows = 4
    response = _answer(model, rows(*range(8)))
    assert [f.row for f in response.failures] == [1, 6]
    assert "value 6.0 is not taken" in response.failures[1].why
    assert _values(response) == [0, 2, 3, 4, 5, 7]


def test_when_every_row_fails_there_are_no_outputs():
    """Each still has its own verdict."""
    response = _answer(PickyModel({0.0, 1.0, 2.0}), rows(0, 1, 2))
    assert response.outputs == ()
    assert [f.why for f in response.failures] == [f"ValueError: value {v}.0 is not taken" for v in range(3)]


@given(st.integers(0, 30), st.sets(st.integers(0, 29)), st.integers(1, 9), st.booleans())
def test_rows_in_are_rows_out_and_failures(count, guilty, size, names_rows):
    """The law, and the right rows, for any guilty set, piece size, and way of telling."""
    model = PickyModel({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = size
    response = _answer(model, rows(*range(count)))
    assert _values(response) == [v for v in range(count) if v not in guilty]
    assert [f.row for f in response.failures] == sorted(g for g in guilty if g < count)


def test_a_batch_too_large_for_memory_is_halved():
    """MemoryError is about the batch's size, and no row is to blame while smaller ones pass."""

    class Small(Model):
        def predict(self, x):
            if len(x) > 2:
                raise MemoryError
            return x

    response = _answer(Small(), rows(*range(7)))
    assert _values(response) == list(range(7))


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), ToldError("bad_alloc")],
)
def test_after_running_out_of_memory_batches_stay_smaller(error):
    """Not only for the batch that failed: each larger one would fail first, and cost a call."""
    asked = []

    class Small(Model):
        max_batch_rows = 8

        def predict(self, x):
            asked.append(len(x))
            if len(x) > 3:
                raise error
            return x

    response = _answer(Small(), rows(*range(20)))
    assert _values(response) == list(range(20))
    assert [n for n in asked if n > 3] == [8, 4, 4]
    assert not response.failures


def test_other_errors_leave_the_size_of_batches_alone():
    asked = []

    class Picky(Model):
        max_batch_rows = 8

        def predict(self, x):
            asked.append(len(x))
            if (x == 3).any():
                raise ValueError("three")
            return x

    response = _answer(Picky(), rows(*range(24)))
    assert [f.row for f in response.failures] == [3]
    assert asked.count(8) == 3


def test_a_model_that_writes_into_its_inputs_spoils_nothing():
    """Neither the caller's array, nor the rows that are tried again."""

    class InPlace(Model):
        def predict(self, x):
            x *= 10
            if (x == 30).any():
                raise ValueError("three")
            return x

    x = rows(1, 2, 3, 4)
    response = _answer(InPlace(), x)
    assert _values(response) == [10, 20, 40]
    assert x[:, 0].tolist() == [1, 2, 3, 4]


def test_predict_is_given_contiguous_arrays():
    """Whatever view the caller holds; compiled code often asks for that."""

    class Contiguous(Model):
        def predict(self, x):
            assert x.flags.c_contiguous
            assert x.flags.writeable
            if len(x) > 1:
                raise ValueError
            return x

    x = np.asfortranarray(np.arange(12, dtype=np.float32).reshape(4, 3))[:, ::2]
    x.flags.writeable = False
    assert _answer(Contiguous(), x).outputs[0].data.tolist() == x.tolist()


@pytest.mark.parametrize("error", [ModelContractError("m", "broken"), ModelInputError("m", "wrong")])
def test_what_no_bisection_can_cure_ends_the_request(error):
    """One call, not one for each row."""

    class Broken(Model):
        calls = 0

        def predict(self, x):
            self.calls += 1
            raise error

    model = Broken()
    with pytest.raises(type(error)):
        _answer(model, rows(1, 2, 3))
    assert model.calls == 1


def test_what_before_call_raises_ends_the_search_for_guilty_rows():
    """A stop or a deadline must not wait for two calls a row."""
    model, calls = PickyModel(set(map(float, range(64)))), []

    def before_call(_):
        calls.append(1)
        if len(calls) > 3:
            raise StoppedError("now")

    asked = request(rows(*range(64)))
    with pytest.raises(StoppedError):
        _instance(model).answer(ticket(asked), before_call)
    assert len(model.batch_rows) == 4


def test_reasons_are_cut_and_survive_a_broken_exception():
    """A model's message may be as long as its array."""

    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError

    class Wordy(Model):
        def predict(self, x):
            raise UnprintableError if x[0, 0] else ValueError("x" * 100_000)

    failures = _answer(Wordy(), rows(0, 1)).failures
    assert len(failures[0].why) == WHY_CHARS_MAX
    assert failures[1].why == "UnprintableError"


def test_a_row_error_may_hold_anything_as_its_reason():
    """Models pass exceptions along; that must not fail the whole request."""

    class Passing(Model):
        def predict(self, x):
            if len(x) == 2:
                raise RowError(1, KeyError("age"))
            return x

    (failure,) = _answer(Passing(), rows(1, 2)).failures
    assert (failure.row, failure.why) == (1, "'age'")


def test_tracebacks_go_to_the_debug_log(caplog):
    """The reason is short; who writes the model needs the line."""
    with caplog.at_level(logging.DEBUG, "headrace.engine"):
        _answer(PickyModel({1.0}), rows(1))
    assert any(r.exc_info and r.levelno == logging.DEBUG for r in caplog.records)


def test_wanted_outputs_are_selected():
    """In the order asked for; a name that the model does not return is the caller's mistake."""

    class Several(Model):
        def predict(self, x):
            return {"a": x, "b": x, "c": x}

    assert [t.name for t in _answer(Several(), rows(1), outputs=("c", "a")).outputs] == ["c", "a"]
    with pytest.raises(ModelInputError, match="no output 'z'"):
        _answer(Several(), rows(1), outputs=("z",))


def test_an_async_model_is_awaited_on_one_loop():
    """Also its load and close; what it keeps between calls stays on the same loop."""

    class Async(Model):
        async def load(self):
            self.loop = asyncio.get_running_loop()

        async def predict(self, x):
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is self.loop
            if (x < 0).any():
                raise ValueError("negative")
            return x

        async def close(self):
            self.closed = True

    model = Async()
    backend = LocalBackend(lambda: model, "m")
    instance = Instance(backend, "m", ManualClock())
    response = instance.answer(ticket(request(rows(1, -2, 3))), lambda _: None)
    assert _values(response) == [1, 3]
    backend.close()
    assert model.closed
    assert model.loop.is_closed()


def test_a_model_that_does_not_write_into_its_inputs_is_spared_the_copy():
    class Reads(Model):
        writes_inputs = False

        def predict(self, x):
            self.given = x
            return x

    model = Reads()
    x = rows(1, 2, 3)
    _answer(model, x)
    assert np.shares_memory(model.given, x)


# Who still waits for a call


class _Watched(LocalBackend):
    """Notes what it is asked to cancel, and lets its test look while a call is going on."""

    def __init__(self, model, during=lambda: None):
        super().__init__(lambda: model, "m")
        self.cancelled, self.during = 0, during

    def cancel(self):
        self.cancelled += 1

    def call(self, parts, rows, request, call, *, fresh):
        self.during(call)
        return super().call(parts, rows, request, call, fresh=fresh)


def test_a_call_is_cancelled_when_the_last_of_its_callers_has_gone():
    """Neither before, nor after it has ended."""
    clock = ManualClock()
    tickets = [ticket(request(deadline=d)) for d in (5.0, 9.0, None)]

    def during(call):
        instance.gone()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, None)
        tickets[2].cancelled = True
        instance.gone()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, 9.0)
        clock.advance(8.0)
        tickets[1].cancelled = True
        instance.gone()
        assert (backend.cancelled, call.cancelled) == (1, True)

    backend = _Watched(PickyModel(()), during)
    instance = Instance(backend, "m", clock)
    instance.answer_all(tickets, lambda _: None)
    instance.gone()
    assert backend.cancelled == 1


def test_a_cancellation_that_was_meant_for_another_call_harms_nobody():
    """Whoever still waits is asked again, alone or in a batch."""
    for count in (1, 3):
        stray = iter([True])

        def during(_, stray=stray):
            if next(stray, False):
                raise CancelledRequestError("the call was cancelled")

        instance = Instance(_Watched(PickyModel(()), during), "m", ManualClock())
        tickets = [ticket(request(rows(float(n))), strict=True) for n in range(count)]
        answers = dict(instance.answer_all(tickets, lambda _: None))
        assert [_values(answers[t]) for t in tickets] == [[n] for n in range(count)]


def test_those_who_left_are_told_that_the_call_was_cancelled():
    tickets = [ticket(request(rows(float(n)))) for n in range(3)]

    def during(_):
        for each in tickets:
            each.cancelled = True
        raise CancelledRequestError("the call was cancelled")

    instance = Instance(_Watched(PickyModel(()), during), "m", ManualClock())
    answers = instance.answer_all(tickets, lambda _: None)
    assert [type(a) for _, a in answers] == [CancelledRequestError] * 3
    assert instance.tally.calls == 1


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=2, max_size=12),
    st.sets(st.integers(0, 9), max_size=3),
    st.booleans(),
    st.sets(st.integers(0, 11), max_size=3),
)
def test_a_batch_answers_each_of_its_tickets_once(asked, guilty, names_rows, gone):
    """Each as if it had been asked alone, whatever fails beside it."""
    model = PickyModel({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = 1000
    tickets = [ticket(request(rows(*values)), strict=True) for values in asked]
    left = {id(t) for n, t in enumerate(tickets) if n in gone}

    def before_call(each):
        if id(each) in left:
            raise CancelledRequestError("gone")

    answered = _instance(model).answer_all(tickets, before_call)
    assert sorted(id(t) for t, _ in answered) == sorted(map(id, tickets))
    answers = {id(t): a for t, a in answered}
    for each, values in zip(tickets, asked, strict=True):
        answer = answers[id(each)]
        if id(each) in left:
            assert isinstance(answer, CancelledRequestError)
        elif guilty.intersection(values):
            assert isinstance(answer, PredictError | RefusedRowsError)
        else:
            assert _values(answer) == values
