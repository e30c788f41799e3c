"""One instance: splits requests into calls, and fails guilty rows only."""

import asyncio
import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cases import for_each
from engine.support import pending_request, request, rows
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
from headrace.engine.model_errors import WHY_CHARS_MAX, RemoteError
from headrace.testing import ManualClock, PickyModel


def _instance(model: Model) -> Instance:
    return Instance(LocalBackend(lambda: model, "m"), "m", ManualClock())


def _answer(model: Model, x, **settings):
    return _instance(model).predict(pending_request(request(x, **settings)), lambda _: None)


def _values(response) -> list[float]:
    return [] if not response.outputs else response.outputs[0].data[:, 0].tolist()


# Results


def test_request_is_split_by_max_batch_rows():
    """Split, called in order, joined."""
    model = PickyModel(())
    model.max_batch_rows = 4
    response = _answer(model, rows(*range(10)), id="r")
    assert model.batch_rows == [4, 4, 2]
    assert _values(response) == list(range(10))
    assert (response.id, response.model_name, response.failures) == ("r", "m", ())


def test_empty_request_needs_no_call():
    model = PickyModel(())
    response = _answer(model, np.zeros((0, 1), np.float32))
    assert (response.outputs, response.failures, model.batch_rows) == ((), (), [])


@for_each("names_rows", [False, True])
def test_guilty_rows_fail_alone(names_rows):
    """For exceptions of the batch and for named rows; in the second part too."""
    model = PickyModel({1.0, 6.0}, names_rows=names_rows)
    model.max_batch_rows = 4
    response = _answer(model, rows(*range(8)))
    assert [f.row for f in response.failures] == [1, 6]
    assert "value 6.0 is refused" in response.failures[1].why
    assert _values(response) == [0, 2, 3, 4, 5, 7]


def test_no_outputs_if_every_row_fails():
    response = _answer(PickyModel({0.0, 1.0, 2.0}), rows(0, 1, 2))
    assert response.outputs == ()
    assert [f.why for f in response.failures] == [f"ValueError: value {v}.0 is refused" for v in range(3)]


@given(st.integers(0, 30), st.sets(st.integers(0, 29)), st.integers(1, 9), st.booleans())
def test_rows_in_equal_rows_out_plus_failures(count, guilty, size, names_rows):
    """For any guilty set, part size and kind of error."""
    model = PickyModel({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = size
    response = _answer(model, rows(*range(count)))
    assert _values(response) == [v for v in range(count) if v not in guilty]
    assert [f.row for f in response.failures] == sorted(g for g in guilty if g < count)


def test_batch_beyond_memory_is_halved():
    """MemoryError concerns the batch size: no row is guilty while smaller batches succeed."""

    class Small(Model):
        def predict(self, x):
            if len(x) > 2:
                raise MemoryError
            return x

    response = _answer(Small(), rows(*range(7)))
    assert _values(response) == list(range(7))


@for_each(
    "error",
    [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), RemoteError("bad_alloc")],
)
def test_batches_stay_smaller_after_out_of_memory(error):
    """Later batches too: each larger one would fail first, and cost a call."""
    batch_sizes = []

    class Small(Model):
        max_batch_rows = 8

        def predict(self, x):
            batch_sizes.append(len(x))
            if len(x) > 3:
                raise error
            return x

    response = _answer(Small(), rows(*range(20)))
    assert _values(response) == list(range(20))
    assert [n for n in batch_sizes if n > 3] == [8, 4, 4]
    assert not response.failures


def test_other_errors_keep_batch_size():
    batch_sizes = []

    class Picky(Model):
        max_batch_rows = 8

        def predict(self, x):
            batch_sizes.append(len(x))
            if (x == 3).any():
                raise ValueError("three")
            return x

    response = _answer(Picky(), rows(*range(24)))
    assert [f.row for f in response.failures] == [3]
    assert batch_sizes.count(8) == 3


def test_model_writing_into_inputs_harms_no_retry():
    """Neither the client's array nor the retried rows change."""

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


def test_predict_gets_contiguous_arrays():
    """For any view of the client; compiled code often needs it."""

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


@for_each("error", [ModelContractError("m", "broken"), ModelInputError("m", "wrong")])
def test_request_errors_are_not_bisected(error):
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


def test_before_call_error_ends_bisection():
    """A stop or a deadline must not wait for two calls per row."""
    model, calls = PickyModel(set(map(float, range(64)))), []

    def before_call(_):
        calls.append(1)
        if len(calls) > 3:
            raise StoppedError("now")

    large_request = request(rows(*range(64)))
    with pytest.raises(StoppedError):
        _instance(model).predict(pending_request(large_request), before_call)
    assert len(model.batch_rows) == 4


def test_error_texts_are_cut_and_survive_broken_str():
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


def test_row_error_reason_may_be_any_object():
    """Models pass exceptions along."""

    class Passing(Model):
        def predict(self, x):
            if len(x) == 2:
                raise RowError(1, KeyError("age"))
            return x

    (failure,) = _answer(Passing(), rows(1, 2)).failures
    assert (failure.row, failure.why) == (1, "'age'")


def test_tracebacks_are_logged_at_debug(caplog):
    """Reasons are short; the author of the model needs the line."""
    with caplog.at_level(logging.DEBUG, "headrace.engine"):
        _answer(PickyModel({1.0}), rows(1))
    assert any(r.exc_info and r.levelno == logging.DEBUG for r in caplog.records)


def test_named_outputs_are_selected():
    """In the order of the request; an unknown name is the client's mistake."""

    class Several(Model):
        def predict(self, x):
            return {"a": x, "b": x, "c": x}

    assert [t.name for t in _answer(Several(), rows(1), outputs=("c", "a")).outputs] == ["c", "a"]
    with pytest.raises(ModelInputError, match="no output 'z'"):
        _answer(Several(), rows(1), outputs=("z",))


def test_async_model_uses_one_loop():
    """Also for `load` and `close`."""

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
    response = instance.predict(pending_request(request(rows(1, -2, 3))), lambda _: None)
    assert _values(response) == [1, 3]
    backend.close()
    assert model.closed
    assert model.loop.is_closed()


def test_read_only_model_gets_no_copy():
    class Reads(Model):
        writes_inputs = False

        def predict(self, x):
            self.given = x
            return x

    model = Reads()
    x = rows(1, 2, 3)
    _answer(model, x)
    assert np.shares_memory(model.given, x)


# Cancellation of calls


class _Watched(LocalBackend):
    """Records cancellations, and lets its test look during a call."""

    def __init__(self, model, during=lambda: None):
        super().__init__(lambda: model, "m")
        self.cancelled, self.during = 0, during

    def cancel(self):
        self.cancelled += 1

    def call(self, parts, rows, request, call, *, fresh):
        self.during(call)
        return super().call(parts, rows, request, call, fresh=fresh)


def test_call_is_cancelled_after_last_client():
    """Neither before, nor after the call has ended."""
    clock = ManualClock()
    entries = [pending_request(request(deadline=d)) for d in (5.0, 9.0, None)]

    def during(call):
        instance.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, None)
        entries[2].cancelled = True
        instance.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, 9.0)
        clock.advance(8.0)
        entries[1].cancelled = True
        instance.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled) == (1, True)

    backend = _Watched(PickyModel(()), during)
    instance = Instance(backend, "m", clock)
    instance.predict_batch(entries, lambda _: None)
    instance.cancel_if_unwanted()
    assert backend.cancelled == 1


def test_stray_cancellation_is_retried():
    """Alone or in a batch."""
    for count in (1, 3):
        stray = iter([True])

        def during(_, stray=stray):
            if next(stray, False):
                raise CancelledRequestError("the call was cancelled")

        instance = Instance(_Watched(PickyModel(()), during), "m", ManualClock())
        entries = [pending_request(request(rows(float(n))), strict=True) for n in range(count)]
        answers = dict(instance.predict_batch(entries, lambda _: None))
        assert [_values(answers[t]) for t in entries] == [[n] for n in range(count)]


def test_departed_clients_get_cancelled_error():
    entries = [pending_request(request(rows(float(n)))) for n in range(3)]

    def during(_):
        for each in entries:
            each.cancelled = True
        raise CancelledRequestError("the call was cancelled")

    instance = Instance(_Watched(PickyModel(()), during), "m", ManualClock())
    answers = instance.predict_batch(entries, lambda _: None)
    assert [type(a) for _, a in answers] == [CancelledRequestError] * 3
    assert instance.counters.calls == 1


@given(
    st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=2, max_size=12),
    st.sets(st.integers(0, 9), max_size=3),
    st.booleans(),
    st.sets(st.integers(0, 11), max_size=3),
)
def test_batch_gives_each_request_one_result(batch, guilty, names_rows, gone):
    """As if each were alone, with any failures in the batch."""
    model = PickyModel({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = 1000
    entries = [pending_request(request(rows(*values)), strict=True) for values in batch]
    left = {id(t) for n, t in enumerate(entries) if n in gone}

    def before_call(each):
        if id(each) in left:
            raise CancelledRequestError("gone")

    answered = _instance(model).predict_batch(entries, before_call)
    assert sorted(id(t) for t, _ in answered) == sorted(map(id, entries))
    answers = {id(t): a for t, a in answered}
    for each, values in zip(entries, batch, strict=True):
        answer = answers[id(each)]
        if id(each) in left:
            assert isinstance(answer, CancelledRequestError)
        elif guilty.intersection(values):
            assert isinstance(answer, PredictError | RefusedRowsError)
        else:
            assert _values(answer) == values
