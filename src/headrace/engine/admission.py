"""Admission: requests are checked, queued within the limits, and withdrawn if their client leaves."""

import asyncio
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final, cast

from headrace.core.errors import (
    HeadraceError,
    LimitError,
    ModelInputError,
    OverloadedError,
    SequenceError,
    StoppedError,
)
from headrace.core.model import BytesAs, HandleRequest, HandleResponse
from headrace.core.tensor import Array, InferRequest, InferResponse, ModelMetadata, Tensor, text_array
from headrace.engine.backend import Backend
from headrace.engine.inline_caller import NO_CALLBACK, InlineCaller
from headrace.engine.outputs import ChunkedResponse
from headrace.engine.pending_request import (
    FutureCallback,
    LoopCallback,
    PendingRequest,
    RequestResult,
    RequestTimes,
    cancelled_error,
    merge_key,
)
from headrace.engine.sequences.sequence_rows import count_steps
from headrace.engine.session import EngineSession

REQUEST_ROWS_MAX: Final = 1 << 20
"""Limit of rows per `infer` request. Rows without values cost no bytes, so the body size does not
limit them.
"""
RETRY_AFTER_MAX_S: Final = 30.0
_HANDLE: Final = "handle"
"""The key of opaque requests, which share calls with each other only."""


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
    _check_deadline(session, request)
    return request, rows


def _check_deadline(session: EngineSession, request: InferRequest | HandleRequest) -> None:
    """Raise DeadlineError for a request that has expired, and count it."""
    if request.deadline is not None and session.clock.now() >= request.deadline:
        with session.counters_lock:
            session.counters.expired += 1
        raise session.deadline_error(request)


def submit(
    session: EngineSession,
    backend: Backend,
    request: InferRequest,
    *,
    merge: bool,
    alone: bool,
    strict: bool,
) -> Future[InferResponse]:
    """Queue a request of a client in a thread, as `Engine.submit` describes."""
    future: Future[InferResponse] = Future()
    try:
        rows = count_rows(request, backend)
    except ModelInputError as error:
        future.set_exception(error)
        return future
    callback = FutureCallback(future)
    key = merge_key(request.inputs) if merge else None
    entry = PendingRequest(request, rows, session.clock.now(), callback, key=key, strict=strict)
    if alone or (strict and backend.metadata.whole_requests):
        entry.key = entry
    inline = session.inline
    if inline is not None and (result := inline.call(entry)) is not None:
        callback.complete(result)
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
    FutureCallback(future).complete(cancelled_error(entry))
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
    _check_deadline(session, request)
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
    _queue(session, entry)
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
        raise session.deadline_error(entry.request) from None


def _queue(session: EngineSession, entry: PendingRequest) -> None:
    try:
        if session.queue.offer(entry):
            return
    except StoppedError:
        raise session.stopped_error("it is stopping, or has lost its instances") from None
    except SequenceError as error:
        session.count_refused(entry, error)
        raise
    with session.counters_lock:
        session.refused += 1
    _, rows, _, _ = session.queue.waiting()
    limit = session.queue.queue_rows_max
    raise OverloadedError(
        f"model {session.name}: {rows} rows are waiting, the limit is {limit} (queue_rows_max): retry later",
        retry_after_s=_retry_after_s(session, rows),
    )


def _retry_after_s(session: EngineSession, rows: int) -> float:
    """Return the estimated seconds until the waiting rows are done, by the time per row so far."""
    done = sum(s.counters.rows + s.counters.failed_rows for s in session.slots)
    busy_s = sum(s.counters.busy_s for s in session.slots)
    row_s = busy_s / done if done else 0.01
    return min(max(rows * row_s / len(session.slots), 0.1), RETRY_AFTER_MAX_S)


def _withdraw(session: EngineSession, entry: PendingRequest, callback: LoopCallback) -> bool:
    """Withdraw a request whose client has left.

    Return True if it had not ended, and been counted, before.
    """
    waited = session.queue.withdraw(entry)
    callback.discard()
    if entry.cancelled and not waited:
        session.cancel_unwanted_calls()
    return entry.cancelled


def convert_inputs(request: InferRequest, metadata: ModelMetadata, *, as_rows: bool) -> InferRequest:
    """Return the request with BYTES elements as the model takes them.

    Text arrives as str from JSON and as bytes elsewhere. With `as_rows`, tensors without axes become
    one row. Raises ModelInputError for invalid UTF-8.
    """
    for tensor in request.inputs:
        data = tensor.data
        if data.dtype.char == "O" or not data.ndim:
            break
    else:
        # Nearly every request ends here. On the hot path, a loop and `char` (not `kind`) are fast.
        return request
    if as_rows:
        request = request.with_row_axes()
    bytes_as = metadata.bytes_as
    if bytes_as == "sent":
        return request
    inputs = tuple(
        _tensor(t, bytes_as, metadata.name) if t.data.dtype.kind == "O" else t for t in request.inputs
    )
    return replace(request, inputs=inputs)


def _tensor(tensor: Tensor, bytes_as: BytesAs, model: str) -> Tensor:
    values: list[Any] = tensor.data.ravel().tolist()
    element_type = str if bytes_as == "str" else bytes
    if set(map(type, values)) <= {element_type}:
        return tensor
    converted = [_element(tensor.name, i, v, element_type, model) for i, v in enumerate(values)]
    data: Array = text_array(converted).reshape(tensor.data.shape)
    return replace(tensor, data=data)


def _element(name: str, index: int, value: Any, element_type: type, model: str) -> Any:
    if isinstance(value, bytes) and element_type is str:
        try:
            return value.decode()
        except UnicodeDecodeError as error:
            why = f"input {name!r} takes text, but element {index} is not UTF-8 (byte {error.start})"
            raise ModelInputError(model, why) from None
    return value.encode() if isinstance(value, str) and element_type is bytes else value
