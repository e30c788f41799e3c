"""The client's side of streams: responses to requests, or the chunks of one opaque response."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from headrace.core.errors import CancelledRequestError, DeadlineError
from headrace.core.model import HandleRequest
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.admission import convert_inputs
from headrace.engine.backend import Backend
from headrace.engine.outputs import ChunkedResponse
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.step_stream import StepStream
from headrace.engine.session import EngineSession
from headrace.engine.streams import StreamCall

T = TypeVar("T")


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
            _open_step_stream(session, session.sequences, call, backend, single=more is None)
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
    slot = session.reserve_slot(call, streams_max)
    try:
        response.open_stream(call)
    except BaseException:
        session.release_stream(slot, call)
        raise
    return ResponseStream[bytes](call, None, lambda call: session.release_stream(slot, call))


def _open_step_stream(
    session: EngineSession, sequences: SequenceSchedule, call: StreamCall, backend: Backend, *, single: bool
) -> None:
    StepStream(
        call,
        session.queue,
        sequences,
        session.clock,
        inputs=backend.inputs,
        single=single,
        on_client_left=session.cancel_unwanted_calls,
    ).open()


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
