"""Opening streams: of responses to requests, and of the chunks of one opaque response."""

import asyncio
from collections.abc import AsyncIterator

from headrace.core.errors import CancelledRequestError
from headrace.core.handle import HandleRequest
from headrace.core.tensor import InferRequest, InferResponse
from headrace.engine.admission import convert_inputs
from headrace.engine.backend import Backend
from headrace.engine.opaque import ChunkedResponse
from headrace.engine.sequences.sequence_schedule import SequenceSchedule
from headrace.engine.sequences.step_stream import StepStream
from headrace.engine.session import EngineSession
from headrace.engine.streams import ResponseStream, StreamCall


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
