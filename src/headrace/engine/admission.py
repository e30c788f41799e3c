"""Admission of clients: requests are checked, and queued within the limits; streams are opened.

A request is withdrawn, and a stream cancelled, if its client leaves.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, Final, Generic, TypeVar, cast

from headrace.core.errors import (
    CancelledRequestError,
    DeadlineError,
    HeadraceError,
    InstanceLostError,
    LimitError,
    ModelInputError,
    OverloadedError,
    SequenceError,
    StoppedError,
)
from headrace.core.model import HandleRequest, HandleResponse
from headrace.core.predictor import RequestTimes
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.backend import Backend
from headrace.engine.inline_caller import NO_CALLBACK, InlineCaller
from headrace.engine.inputs import convert_inputs
from headrace.engine.outputs import ChunkedResponse
from headrace.engine.pending_request import (
    FutureCallback,
    LoopCallback,
    PendingRequest,
    RequestResult,
    cancelled_error,
    deadline_error,
    merge_key,
    stopped_error,
)
from headrace.engine.sequences.sequence_rows import count_steps
from headrace.engine.sequences.step_stream import StepStream
from headrace.engine.session import EngineSession, SessionState
from headrace.engine.streams import StreamCall

T = TypeVar("T")

REQUEST_ROWS_MAX: Final = 1 << 20
"""Limit of rows per `infer` request. Rows without values cost no bytes, so the body size does not
limit them.
"""
RETRY_AFTER_MAX_S: Final = 30.0
_BACKGROUND: Final = "background"
"""Part of the key of requests of background work."""
_HANDLE: Final = "handle"
"""The key of opaque requests, which share calls with each other only."""


def running_backend(session: EngineSession, why: str = "it is starting or stopping") -> Backend:
    """Return the backend that describes the model.

    Raises StoppedError, for the reason `why`, and InstanceLostError once no instance is left.
    """
    backend = session.slots[0].backend if session.state is SessionState.RUNNING else None
    if backend is None:
        raise stopped_error(session.name, why)
    if session.lost_reason is not None:
        raise InstanceLostError(session.name, session.lost_reason)
    return backend


def count_rows(request: InferRequest, backend: Backend) -> int:
    """Return the rows of a request. Raises ModelInputError if it does not fit the model."""
    if not backend.metadata.can_predict:
        raise ModelInputError(
            backend.metadata.name,
            f"its class {backend.metadata.platform} has a predict_stream but no predict, which records, "
            "files and jobs need: write def predict(self, x), or serve the model and send the request "
            "as a stream",
        )
    if backend.metadata.is_stateful:
        return count_steps(request, backend.inputs)
    return backend.inputs.check(request)


def _prepare(session: EngineSession, backend: Backend, request: InferRequest) -> tuple[InferRequest, int]:
    """Return the request as its model takes it, and its rows.

    Raises ModelInputError, LimitError beyond REQUEST_ROWS_MAX rows, and DeadlineError.
    """
    request = convert_inputs(request, backend.metadata, as_rows=not backend.metadata.whole_requests)
    rows = count_rows(request, backend)
    if rows > REQUEST_ROWS_MAX:
        raise LimitError(f"model {session.name}: a request has {rows} rows; the limit is {REQUEST_ROWS_MAX}")
    if request.deadline is not None:
        _check_deadline(session, request, request.deadline)
    return request, rows


def _check_deadline(session: EngineSession, request: InferRequest | HandleRequest, deadline: float) -> None:
    """Raise DeadlineError for a request that has expired, and count it."""
    if session.clock.now() >= deadline:
        with session.counters_lock:
            session.counters.expired += 1
        raise deadline_error(session.name, request)


def submit(
    session: EngineSession,
    backend: Backend,
    request: InferRequest,
    *,
    merge: bool,
    alone: bool,
    strict: bool,
    times: RequestTimes | None = None,
) -> Future[InferResponse]:
    """Queue a request of a client in a thread, as `Engine.submit` describes."""
    future: Future[InferResponse] = Future()
    try:
        rows = count_rows(request, backend)
    except ModelInputError as error:
        future.set_exception(error)
        return future
    callback = FutureCallback(future)
    # Not the key of live requests: their calls do not wait for rows of background work.
    key = (_BACKGROUND, merge_key(request.inputs)) if merge else None
    arrived_s = session.clock.now()
    entry = PendingRequest(
        request, rows, arrived_s, callback, key=key, strict=strict, times=times, background=True
    )
    if alone or (strict and backend.metadata.whole_requests):
        entry.key = entry
    inline = session.inline
    if inline is not None and (result := inline.call(entry)) is not None:
        callback.complete(result)
        session.rest(session.clock.now() - arrived_s)
        return future
    try:
        session.queue.put(entry, future)
    except StoppedError:
        raise
    except HeadraceError as error:
        session.count_refused(entry, error)
        future.set_exception(error)
    return future


def abandon(session: EngineSession, future: Future[InferResponse]) -> None:
    """Give up a future of `submit`, as `Engine.abandon` describes."""
    if future.cancel():
        return
    entry = session.queue.abandon(future)
    if entry is None:
        return
    with session.counters_lock:
        session.counters.cancelled += 1
    FutureCallback(future).complete(cancelled_error(entry.request))
    session.cancel_unwanted_calls()


async def infer(
    session: EngineSession, backend: Backend, request: InferRequest, times: RequestTimes | None
) -> InferResponse:
    """Queue a request of a client in an event loop, as `Engine.infer` describes."""
    request, rows = _prepare(session, backend, request)
    callback = LoopCallback(asyncio.get_running_loop())
    key = merge_key(request.inputs)
    entry = PendingRequest(request, rows, session.clock.now(), callback, key=key, strict=True, times=times)
    if backend.metadata.whole_requests:
        entry.key = entry
    if times is not None:
        times.arrived_s = entry.arrived_s
    return await _queue_and_wait(session, entry, callback)


def infer_inline(
    session: EngineSession,
    backend: Backend,
    inline: InlineCaller,
    request: InferRequest,
    times: RequestTimes | None,
) -> InferResponse | None:
    """Return the response of an inline model, as `Engine.infer_inline` describes."""
    request, rows = _prepare(session, backend, request)
    entry = PendingRequest(request, rows, session.clock.now(), NO_CALLBACK, strict=True, times=times)
    return cast("InferResponse | None", _result(inline.call(entry)))


async def handle(session: EngineSession, request: HandleRequest) -> HandleResponse | ChunkedResponse:
    """Call a model for an opaque request, inline or by the queue, as `Engine.handle` describes."""
    if request.deadline is not None:
        _check_deadline(session, request, request.deadline)
    callback = LoopCallback(asyncio.get_running_loop())
    entry = PendingRequest(request, 1, session.clock.now(), callback, key=_HANDLE, strict=True)
    inline = session.inline
    result = None if inline is None else _result(inline.call(entry))
    if result is None:
        result = await _queue_and_wait(session, entry, callback)
    return cast("HandleResponse | ChunkedResponse", result)


def _result(result: RequestResult | None) -> InferResponse | HandleResponse | ChunkedResponse | None:
    """Return a result, or raise it if it is an error."""
    if isinstance(result, BaseException):
        raise result
    return result


async def _queue_and_wait(session: EngineSession, entry: PendingRequest, callback: LoopCallback) -> Any:
    """Queue a request, and return its result; withdraw it on cancellation or at its deadline.

    Never waits for space. Raises OverloadedError, StoppedError, DeadlineError, and the error of a
    sequence that refuses the request.
    """
    try:
        is_queued = session.queue.offer(entry)
    except StoppedError:
        raise stopped_error(session.name, "it is stopping, or has lost its instances") from None
    except SequenceError as error:
        session.count_refused(entry, error)
        raise
    if not is_queued:
        raise _overloaded_error(session)
    deadline = entry.request.deadline
    try:
        if deadline is None:
            return await callback.future
        async with asyncio.timeout(deadline - session.clock.now()):
            return await callback.future
    except (asyncio.CancelledError, GeneratorExit):
        if _withdraw(session, entry, callback):
            with session.counters_lock:
                session.counters.cancelled += 1
        raise
    except TimeoutError:
        if _withdraw(session, entry, callback):
            with session.counters_lock:
                session.counters.expired += 1
                session.counters.record_latency(entry, session.clock.now())
        raise deadline_error(session.name, entry.request) from None


def _overloaded_error(session: EngineSession) -> OverloadedError:
    """Return the error of a request for which there is no space, and count it."""
    with session.counters_lock:
        session.refused += 1
    _, rows, _, _ = session.queue.waiting()
    limit = session.queue.queue_rows_max
    return OverloadedError(
        f"model {session.name}: {rows} rows are waiting, the limit is {limit} (queue_rows_max): retry later",
        retry_after_s=_retry_after_s(session, rows),
    )


def _retry_after_s(session: EngineSession, rows: int) -> float:
    """Return the estimated seconds until the waiting rows are done, by the time per row so far."""
    done = sum(s.counters.rows + s.counters.failed_rows for s in session.slots)
    busy_s = sum(s.counters.busy_s for s in session.slots)
    row_s = busy_s / done if done else 0.01
    return min(max(rows * row_s / len(session.members), 0.1), RETRY_AFTER_MAX_S)


def _withdraw(session: EngineSession, entry: PendingRequest, callback: LoopCallback) -> bool:
    """Withdraw a request whose client has left.

    Return True if it had not ended, and been counted, before.
    """
    waited = session.queue.withdraw(entry)
    callback.discard()
    if entry.cancelled and not waited:
        session.cancel_unwanted_calls()
    return entry.cancelled


class ResponseStream(Generic[T]):
    """The responses of a stream, or the chunks of a body, for its client, in the client's event loop.

    Iterate it, or call `next_batch` for all responses that have arrived. Always `aclose` it: before
    the end of the stream, this cancels the model's work. Raises the error of the model after the
    items before it, and DeadlineError past the deadline.
    """

    def __init__(
        self, call: StreamCall, feeder: "asyncio.Task[None] | None", on_close: Callable[[StreamCall], None]
    ) -> None:
        self._call = call
        self._feeder = feeder
        self._on_close = on_close
        self._ready: list[T] = []
        self._ended = False

    def __aiter__(self) -> "ResponseStream[T]":
        """Return the stream itself, which can be iterated once."""
        return self

    async def __anext__(self) -> T:
        """Return the next response."""
        if not self._ready:
            self._ready = (await self.next_batch())[::-1]
        if not self._ready:
            raise StopAsyncIteration
        return self._ready.pop()

    async def next_batch(self) -> list[T]:
        """Wait for at least one response. Return all that have arrived; none at the end."""
        if self._ended:
            return []
        try:
            items = await self._next_batch()
        except BaseException:
            await self.aclose()
            raise
        self._call.items += len(items)
        if not items:
            await self.aclose()
        return items

    async def _next_batch(self) -> list[T]:
        left_s = self._call.deadline_s
        if left_s is None:
            return await self._call.responses.aget()
        if left_s <= 0:
            # A model that never makes its client wait would otherwise never be late.
            raise self._deadline_error()
        timeout = asyncio.timeout(left_s)
        try:
            async with timeout:
                return await self._call.responses.aget()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise self._deadline_error() from None

    def _deadline_error(self) -> DeadlineError:
        name = f"stream {self._call.id}" if self._call.id else "a stream"
        return DeadlineError(f"{name} did not end before its deadline")

    async def aclose(self) -> None:
        """End the stream. Does nothing the second time."""
        if self._ended:
            return
        self._ended = True
        self._ready.clear()
        self._call.cancel()
        try:
            if self._feeder is not None:
                self._feeder.cancel()
                # Not awaited directly: its cancellation and the current task's could not be told
                # apart.
                await asyncio.wait((self._feeder,))
        finally:
            self._on_close(self._call)


def open_stream(
    session: EngineSession,
    backend: Backend,
    first: InferRequest,
    more: AsyncIterator[InferRequest] | None,
    streams_max: int,
) -> ResponseStream[InferResponse]:
    """Send `first`, then the requests of `more`, to the model, and return its responses.

    Raises ModelInputError for the first request, OverloadedError while `streams_max` streams are
    open, and StoppedError. An invalid later request, and an exception of `more`, end the stream.
    """
    first = _checked_request(first, backend)
    call = StreamCall(session.clock, deadline=first.deadline, id=first.id)
    call.requests.offer(first)
    slot = session.reserve_slot(call, streams_max)
    try:
        if session.sequences is not None:
            StepStream(
                call,
                session.queue,
                session.sequences,
                session.clock,
                inputs=backend.inputs,
                single=more is None,
                on_client_left=session.cancel_unwanted_calls,
            ).open()
        else:
            assert slot.backend is not None
            slot.backend.open_stream(call)
    except BaseException:
        session.release_stream(slot, call)
        raise
    with session.counters_lock:
        slot.counters.streams += 1
    feeder: asyncio.Task[None] | None = None
    if more is None:
        call.requests.close()
    else:
        feeder = asyncio.get_running_loop().create_task(_feed(call, _checked_requests(more, backend)))
    return ResponseStream[InferResponse](call, feeder, lambda call: session.release_stream(slot, call))


def open_chunks(
    session: EngineSession, request: HandleRequest, response: ChunkedResponse, streams_max: int
) -> ResponseStream[bytes]:
    """Return the chunks of a response. Raises OverloadedError and StoppedError as `open_stream`."""
    call = StreamCall(session.clock, deadline=request.deadline, id=request.id)
    call.requests.close()
    slot = session.reserve_slot(call, streams_max, response)
    try:
        response.open_stream(call)
    except BaseException:
        session.release_stream(slot, call)
        raise
    return ResponseStream[bytes](call, None, lambda call: session.release_stream(slot, call))


def _checked_request(request: InferRequest, backend: Backend) -> InferRequest:
    """Return one request of a stream with the declared types of its inputs. Raises ModelInputError."""
    if backend.inputs.declared and not backend.metadata.is_stateful:
        backend.inputs.check_names(request)
    return convert_inputs(request, backend.metadata, as_rows=backend.metadata.is_stateful)


async def _checked_requests(
    requests: AsyncIterator[InferRequest], backend: Backend
) -> AsyncIterator[InferRequest]:
    async for request in requests:
        yield _checked_request(request, backend)


async def _feed(call: StreamCall, requests: AsyncIterator[InferRequest]) -> None:
    """Feed the requests of a stream to its model."""
    error: BaseException | None = None
    try:
        async for request in requests:
            await call.requests.aput(request)
    except CancelledRequestError:
        return
    except asyncio.CancelledError:
        # Not all requests were sent: the model must not take this for their end.
        error = CancelledRequestError("the client has closed the stream")
        raise
    except BaseException as raised:  # noqa: BLE001 - raised in the generator of the model
        error = raised
    finally:
        call.requests.close(error)
