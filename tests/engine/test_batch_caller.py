"""Calls of a model with requests: split and shared calls, and failures of guilty rows only."""

import asyncio
import logging
from weakref import WeakSet

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace.engine.outputs
from cases import for_each
from engine.support import pending_request, request, rows
from headrace.batching.bisect import PROBE_CALLS
from headrace.core import Model, RowError
from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    ModelContractError,
    ModelInputError,
    PredictError,
    RefusedRowsError,
    StoppedError,
)
from headrace.core.tensor import InferResponse, RowFailure, Tensor, TensorSpec
from headrace.engine.backend import Backend
from headrace.engine.batch_caller import BatchCaller, CallItem, prepare_inputs
from headrace.engine.batch_loop import RequestCommitter
from headrace.engine.counters import EngineCounters
from headrace.engine.local_backend import LocalBackend
from headrace.engine.model_methods import WHY_CHARS_MAX, RemoteError
from headrace.engine.outputs import ResponseBuilder
from headrace.engine.pending_request import PendingRequest, RequestResult
from headrace.engine.request_queue import RequestQueue
from headrace.engine.schedule import IndependentRequests
from headrace.testing import ManualClock, PickyModel


def _end_error(before_call):
    """Return the hook that returns the HeadraceError which `before_call` raises."""

    def end_error(entry):
        try:
            before_call(entry)
        except HeadraceError as error:
            return error

    return end_error


class _Instance:
    """A caller of a model, with the items and the results of requests."""

    def __init__(self, model: Model | Backend, *, clock=None, before_call=lambda _: None):
        backend = LocalBackend(lambda: model, "m") if isinstance(model, Model) else model
        clock = clock or ManualClock()
        schedule = IndependentRequests(merge=True)
        queue = RequestQueue(
            clock, schedule, model="m", in_flight_max=1, queue_rows_max=1, deliver_results=lambda _: None
        )
        queue.end_error = _end_error(before_call)
        self.counters = EngineCounters()
        self.caller = BatchCaller(backend, "m", clock, self.counters, end_error=queue.end_error)
        self._committer = RequestCommitter(
            queue,
            schedule,
            backend,
            self.counters,
            clock,
            unopened=WeakSet(),
            respond=ResponseBuilder(backend.check, backend.metadata),
        )

    def items(self, entries: list[PendingRequest]) -> list[CallItem]:
        return [self._committer.item(entry) for entry in entries]

    def call(self, entries: list[PendingRequest]) -> list[RequestResult]:
        """Return the results of requests that share a call."""
        items = self.items(entries)
        for call in self.caller.call(items) or ():
            call.apply()
        return [self._committer.result(item) for item in items]

    def answer(self, x, *, strict=False, **settings) -> InferResponse:
        """Return the response to one request. Raises its error."""
        (result,) = self.call([pending_request(request(x, **settings), strict=strict)])
        if isinstance(result, BaseException):
            raise result
        return result


def _answer(model: Model, x, **settings) -> InferResponse:
    return _Instance(model).answer(x, **settings)


def _strict(*requests: list[float]) -> list[PendingRequest]:
    """Return a strict request for each list of rows."""
    return [pending_request(request(rows(*values)), strict=True) for values in requests]


def _values(response) -> list[float]:
    return [] if not response.outputs else response.outputs[0].data[:, 0].tolist()


class OutOfMemoryError(Exception):
    """An error that is known by its name, as that of torch."""


class _Limited(Model):
    """Has memory for `fits` rows per call, and none for the values `too_large`."""

    max_batch_rows = 8

    def __init__(self, fits, *, too_large=(), error=None):
        self.fits, self.too_large = fits, too_large
        self.error = error or MemoryError("full")
        self.batch_rows = []

    def predict(self, x):
        self.batch_rows.append(len(x))
        if len(x) > self.fits or np.isin(x, self.too_large).any():
            raise self.error
        return x


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
    model.outputs = (TensorSpec("y", "INT64", (-1, 2)),)
    response = _answer(model, np.zeros((0, 1), np.float32))
    assert (response["y"].shape, response.failures, model.batch_rows) == ((0, 2), (), [])


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
    whys = [f.why.partition(" (doubles.py:")[0] for f in response.failures]
    assert whys == [f"ValueError: value {v}.0 is refused" for v in range(3)]


@given(st.integers(0, 30), st.sets(st.integers(0, 29)), st.integers(1, 9), st.booleans())
def test_rows_in_equal_rows_out_plus_failures(count, guilty, size, names_rows):
    """For any guilty set, part size and kind of error."""
    model = PickyModel({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = size
    response = _answer(model, rows(*range(count)))
    assert _values(response) == [v for v in range(count) if v not in guilty]
    assert [f.row for f in response.failures] == sorted(g for g in guilty if g < count)


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

    with pytest.raises(StoppedError):
        _Instance(model, before_call=before_call).answer(rows(*range(64)))
    assert len(model.batch_rows) == 3


def test_error_texts_are_cut_and_survive_broken_str():
    """A model's message may be as long as its array."""

    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError

    class Wordy(Model):
        def predict(self, x):
            raise UnprintableError if x[0, 0] else ValueError("x" * 100_000)

    failures = _answer(Wordy(), rows(0, 1)).failures
    text, _, place = failures[0].why.partition(" (")
    assert len(text) == WHY_CHARS_MAX
    assert place.startswith("test_batch_caller.py:")
    assert failures[1].why.startswith("UnprintableError (test_batch_caller.py:")


@for_each(
    ("reason", "why"),
    [(KeyError("age"), "'age'"), ("x" * 100_000, "x" * WHY_CHARS_MAX)],
)
def test_row_error_reason_may_be_any_object_of_any_length(reason, why):
    """Models pass exceptions along."""

    class Passing(Model):
        def predict(self, x):
            if len(x) == 2:
                raise RowError(1, reason)
            return x

    assert _answer(Passing(), rows(1, 2)).failures == (RowFailure(1, why),)
    with pytest.raises(RefusedRowsError) as caught:
        _answer(Passing(), rows(1, 2), strict=True)
    assert str(caught.value).endswith(f"row 1: {why}")


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
    assert _values(_Instance(backend).answer(rows(1, -2, 3))) == [1, 3]
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

    def call(self, inputs, call, deliver=None):
        self.during(call)
        return super().call(inputs, call, deliver)


def test_call_is_cancelled_after_last_client():
    """Neither before, nor after the call has ended."""
    clock = ManualClock()
    entries = [pending_request(request(deadline=d)) for d in (5.0, 9.0, None)]

    def during(call):
        caller.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, None)
        entries[2].cancelled = True
        caller.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled, call.deadline_s) == (0, False, 9.0)
        clock.advance(8.0)
        entries[1].cancelled = True
        caller.cancel_if_unwanted()
        assert (backend.cancelled, call.cancelled) == (1, True)

    backend = _Watched(PickyModel(()), during)
    instance = _Instance(backend, clock=clock)
    caller = instance.caller
    instance.call(entries)
    caller.cancel_if_unwanted()
    assert backend.cancelled == 1


def test_stray_cancellation_is_retried():
    """Alone or in a batch."""
    for count in (1, 3):
        stray = iter([True])

        def during(_, stray=stray):
            if next(stray, False):
                raise CancelledRequestError("the call was cancelled")

        instance = _Instance(_Watched(PickyModel(()), during))
        results = instance.call(_strict(*([n] for n in range(count))))
        assert [_values(result) for result in results] == [[n] for n in range(count)]


def test_stray_cancellation_of_retry_is_retried():
    """The shared call has failed before, for another reason."""
    during_call = iter([None, CancelledRequestError("the call was cancelled"), None, None])

    def during(_):
        if (error := next(during_call, None)) is not None:
            raise error

    first, second = _Instance(_Watched(PickyModel({1.0}), during)).call(_strict([0], [1]))
    assert _values(first) == [0]
    assert isinstance(second, PredictError)


def test_departed_clients_get_cancelled_error():
    entries = [pending_request(request(rows(float(n)))) for n in range(3)]

    def during(_):
        for each in entries:
            each.cancelled = True
        raise CancelledRequestError("the call was cancelled")

    instance = _Instance(_Watched(PickyModel(()), during))
    assert [type(result) for result in instance.call(entries)] == [CancelledRequestError] * 3
    assert instance.counters.calls == 1


# Shared calls


def test_requests_share_one_call():
    """Each response has the outputs of its own rows, and its own selection."""

    class Several(Model):
        def predict(self, x):
            return {"a": x, "b": -x}

    entries = [
        pending_request(request(rows(1, 2), id="r"), strict=True),
        pending_request(request(rows())),
        pending_request(request(rows(3), outputs=("b",)), strict=True),
        pending_request(request(rows(4), outputs=("z",)), strict=True),
        pending_request(request(rows(5))),
    ]
    instance = _Instance(Several())
    first, empty, second, unknown, last = instance.call(entries)
    assert instance.counters.calls == 1
    assert (first.id, _values(first)) == ("r", [1, 2])
    assert [(t.name, t.data.shape) for t in empty.outputs] == [("a", (0, 1)), ("b", (0, 1))]
    assert [(t.name, t.data.tolist()) for t in second.outputs] == [("b", [[-3]])]
    assert isinstance(unknown, ModelInputError)
    assert _values(last) == [5]


def test_outputs_that_cannot_be_joined_fail_their_request_only(monkeypatch):
    """For example for lack of memory. They came in two calls, around a bad row."""

    def fails(parts):
        raise MemoryError("no room")

    monkeypatch.setattr(headrace.engine.outputs, "concatenate", fails)
    entries = [pending_request(request(rows(1, 2, 3))), *_strict([4])]
    first, second = _Instance(PickyModel({2.0})).call(entries)
    assert isinstance(first, PredictError)
    assert "MemoryError: no room" in str(first)
    assert _values(second) == [4]


def test_bad_row_fails_its_strict_request_only():
    model = PickyModel({3.0})
    first, second, third = _Instance(model).call(_strict([1, 2], [3, 4], [5]))
    assert (_values(first), _values(third)) == ([1, 2], [5])
    assert isinstance(second, PredictError)
    assert "value 3.0 is refused" in str(second)


def test_refused_requests_are_not_called_again():
    """The rows of a RowError are known to be bad; the other requests are retried together.

    The error names the rows of the request, not of the call.
    """
    model = PickyModel({3.0, 6.0}, names_rows=True)
    instance = _Instance(model)
    first, second, third, last = instance.call(
        [*_strict([1, 2], [0, 3]), pending_request(request(rows(5, 6, 7))), *_strict([8])]
    )
    assert model.batch_rows == [8, 5]
    assert (instance.counters.calls, instance.counters.retries) == (2, 1)
    assert [_values(first), _values(third), _values(last)] == [[1, 2], [5, 7], [8]]
    assert isinstance(second, RefusedRowsError)
    assert "row 1: value 3.0 is refused" in str(second)
    assert third.failures == (RowFailure(1, "value 6.0 is refused"),)


def test_refused_rows_of_split_request_are_those_of_request():
    model = PickyModel({6.0}, names_rows=True)
    model.max_batch_rows = 4
    with pytest.raises(RefusedRowsError, match=r"row 6: value 6\.0 is refused"):
        _answer(model, rows(*range(10)), strict=True)
    # No row is called after the first bad one.
    assert model.batch_rows == [4, 4]


def test_request_that_expires_during_call_gets_deadline_error():
    """Each request before every call, and once its outputs are known."""
    clock = ManualClock()
    entries = [pending_request(request(deadline=deadline)) for deadline in (1.0, None)]

    def before_call(entry):
        if not entry.is_wanted(clock.now()):
            raise DeadlineError("too late")

    backend = _Watched(PickyModel(()), lambda _: clock.advance(2.0))
    first, second = _Instance(backend, clock=clock, before_call=before_call).call(entries)
    assert isinstance(first, DeadlineError)
    assert _values(second) == [1]


def test_unwanted_requests_need_no_call():
    def before_call(_):
        raise CancelledRequestError("gone")

    instance = _Instance(PickyModel(()), before_call=before_call)
    assert instance.caller.call(instance.items(_strict([1], [2]))) is None
    assert instance.counters.calls == 0


def test_instance_death_leaves_items_without_outcome():
    """`died_in` are those of the call during which the instance died, for their retry."""
    deaths = iter([None, InstanceLostError("m", "it died")])

    def during(_):
        if (error := next(deaths)) is not None:
            raise error

    model = PickyModel(())
    model.max_batch_rows = 2
    instance = _Instance(_Watched(model, during))
    items = instance.items(_strict([1], [2], [3]))
    with pytest.raises(InstanceLostError):
        instance.caller.call(items)
    assert instance.caller.died_in == items[2:]
    assert [(item.error, item.outputs) for item in items] == [(None, [])] * 3


class _Recorded(_Watched):
    """Records the arguments of its calls."""

    def __init__(self, model):
        super().__init__(model, lambda _: None)
        self.calls = []

    def call(self, inputs, call, deliver=None):
        self.calls.append(inputs)
        return super().call(inputs, call, deliver)


@for_each("gone", [False, True])
def test_prepared_call_is_used_if_all_items_are_wanted(gone):
    """Its retries are other calls."""

    def before_call(entry):
        if entry.cancelled:
            raise CancelledRequestError("gone")

    backend = _Recorded(PickyModel({3.0}))
    instance = _Instance(backend, before_call=before_call)
    items = instance.items(_strict([1], [2], [3]))
    prepared = prepare_inputs(items)
    items[0].entry.cancelled = gone
    for call in instance.caller.call(items, prepared):
        call.apply()
    first, *others = [inputs is prepared for inputs in backend.calls]
    assert (first, any(others), len(others) > 1) == (not gone, False, True)
    assert [len(item.outputs) for item in items] == [not gone, 1, 0]
    assert (items[1].error, type(items[2].error)) == (None, PredictError)


class _Whole(Model):
    """An adapter that takes whole requests, and refuses some."""

    def predict(self, x):
        return x

    def predict_request(self, request):
        if request.id == "refused":
            raise RowError(0, "bad")
        x = request.inputs[0].data
        return InferResponse((Tensor("a", x), Tensor("b", -x)), "other", parameters={"k": request.id})


def test_whole_request_gets_response_of_model():
    """With the outputs that it names. A request that may lose rows is predicted."""
    instance = _Instance(_Whole())
    response = instance.answer(rows(1, 2), strict=True, id="r")
    assert ([t.name for t in response.outputs], response.parameters) == (["a", "b"], {"k": "r"})
    assert (response.model_name, response.id) == ("m", "r")
    selected = instance.answer(rows(1, 2), strict=True, outputs=("b",))
    assert [(t.name, t.data.tolist()) for t in selected.outputs] == [("b", [[-1], [-2]])]
    assert [t.name for t in instance.answer(rows(1, 2)).outputs] == ["output"]


def test_whole_request_may_be_refused():
    with pytest.raises(RefusedRowsError, match="bad"):
        _answer(_Whole(), rows(1, 2), strict=True, id="refused")
    with pytest.raises(ModelInputError, match="no output 'z'"):
        _answer(_Whole(), rows(1, 2), strict=True, outputs=("z",))


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 9), max_size=3), st.booleans()), min_size=1, max_size=12),
    st.sets(st.integers(0, 9), max_size=3),
    st.booleans(),
    st.sets(st.integers(0, 11), max_size=3),
    st.tuples(st.integers(1, 40), st.integers(1, 40)),
)
def test_batch_gives_each_request_one_result(batch, guilty, names_rows, gone, limits):
    """As if each were alone, with any failures in the batch, limit of rows, and memory."""
    rows_max, fits = limits

    class Limited(PickyModel):
        def predict(self, x):
            if len(x) > fits:
                self.batch_rows.append(len(x))
                raise MemoryError
            return super().predict(x)

    model = Limited({float(g) for g in guilty}, names_rows=names_rows)
    model.max_batch_rows = rows_max
    entries = [pending_request(request(rows(*values)), strict=strict) for values, strict in batch]
    left = {id(t) for n, t in enumerate(entries) if n in gone}

    def before_call(each):
        if id(each) in left:
            raise CancelledRequestError("gone")

    results = _Instance(model, before_call=before_call).call(entries)
    assert all(n <= rows_max for n in model.batch_rows)
    for each, (values, strict), result in zip(entries, batch, results, strict=True):
        if id(each) in left:
            assert isinstance(result, CancelledRequestError)
        elif strict and guilty.intersection(values):
            assert isinstance(result, PredictError | RefusedRowsError)
        else:
            assert _values(result) == [v for v in values if v not in guilty]
            assert [f.row for f in result.failures] == [n for n, v in enumerate(values) if v in guilty]


# Memory


def test_batch_beyond_memory_is_halved():
    """MemoryError concerns the batch size: no row is guilty while smaller batches succeed."""
    response = _answer(_Limited(2), rows(*range(7)))
    assert _values(response) == list(range(7))
    assert response.failures == ()


@for_each(
    "error",
    [
        MemoryError("full"),
        OutOfMemoryError("full"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
        RemoteError("bad_alloc"),
    ],
)
@for_each("strict", [True, False])
def test_batches_stay_smaller_after_out_of_memory(error, strict):
    """Later batches too: each larger one would fail first, and cost a call."""
    model = _Limited(3, error=error)
    instance = _Instance(model)
    response = instance.answer(rows(*range(20)), strict=strict)
    assert _values(response) == list(range(20))
    assert [n for n in model.batch_rows if n > 3] == [8, 4, 4]
    assert not response.failures
    del model.batch_rows[:]
    instance.answer(rows(*range(4)), strict=strict)
    assert model.batch_rows == [2, 2]


@for_each("error", [MemoryError("full"), OutOfMemoryError("full")])
def test_strict_request_beyond_memory_is_split(error):
    """It is smaller than `max_batch_rows`. Its response is complete."""
    model = _Limited(2, error=error)
    response = _answer(model, rows(*range(7)), strict=True)
    assert _values(response) == list(range(7))
    assert model.batch_rows == [7, 3, 1, 2, 4, 2, 2]


@for_each("error", [MemoryError("full"), OutOfMemoryError("full")])
def test_strict_request_with_too_large_row_fails(error):
    """No larger batch succeeds either, so its size is not to blame."""
    model = _Limited(8, too_large=[2], error=error)
    instance = _Instance(model)
    with pytest.raises(PredictError, match=f"{type(error).__name__}: full"):
        instance.answer(rows(1, 2, 3, 4), strict=True)
    # Not even the rows that would fit are called afterwards.
    assert model.batch_rows == [4, 2, 1, 1]
    del model.batch_rows[:]
    assert _values(instance.answer(rows(*range(3, 11)), strict=True)) == list(range(3, 11))
    assert model.batch_rows == [8]


def test_one_too_large_request_neither_fails_others_nor_lowers_limit():
    model = _Limited(64, too_large=[17])
    model.max_batch_rows = 64
    instance = _Instance(model)
    results = instance.call(_strict(*([n] for n in range(64))))
    assert isinstance(results.pop(17), PredictError)
    assert [_values(result) for result in results] == [[n] for n in range(64) if n != 17]
    assert len(model.batch_rows) <= 13  # 2 log2(64) + 1
    del model.batch_rows[:]
    for _ in range(3):
        instance.call(_strict(*([n] for n in range(100, 164))))
    assert model.batch_rows == [64] * 3


def test_limit_is_lowered_although_its_request_failed():
    """The other half of the request is not called any more."""

    class Picky(_Limited):
        def predict(self, x):
            returned = super().predict(x)
            if (x == 0).any():
                raise ValueError("zero")
            return returned

    model = Picky(4)
    instance = _Instance(model)
    with pytest.raises(PredictError, match="zero"):
        instance.answer(rows(*range(8)), strict=True)
    assert model.batch_rows == [8, 4]
    del model.batch_rows[:]
    instance.answer(rows(*range(1, 9)), strict=True)
    assert model.batch_rows == [4, 4]


def test_lowered_limit_recovers(caplog):
    """Another program on the same device has freed its memory."""
    model = _Limited(2)
    instance = _Instance(model)
    instance.answer(rows(*range(8)))
    assert [(r.getMessage(), r.rows_max) for r in caplog.records if r.levelno == logging.WARNING] == [
        ("out of memory: the batch size is reduced", 2)
    ]
    model.fits = 8
    for _ in range(2 * PROBE_CALLS):
        instance.answer(rows(*range(8)))
    del model.batch_rows[:]
    instance.answer(rows(*range(8)))
    assert model.batch_rows == [8]


def test_attempts_to_recover_become_rare():
    """Each one costs a call, while the memory stays as it is."""
    model = _Limited(4)
    instance = _Instance(model)
    for _ in range(31 * PROBE_CALLS):
        assert len(_values(instance.answer(rows(*range(4)), strict=True))) == 4
        assert _values(instance.answer(rows(*range(8)))) == list(range(8))
    # Of 93 * PROBE_CALLS full calls, after 1, 2, 4, 8, 16 and 32 times PROBE_CALLS.
    assert model.batch_rows.count(8) == 1 + 6
