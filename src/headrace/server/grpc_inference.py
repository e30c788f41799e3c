"""Inference over gRPC: the methods ModelInfer and ModelStreamInfer over a dataplane.

ModelStreamInfer has two response formats ("dialects"). MLServer: the first message names the model,
and an error ends the call. Triton: every message is a separate request to any model. Its responses
are sent when they are ready, and an error is one more response. A client cannot tell the two message
types apart, so call metadata or a setting of the listener selects the format.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Final

from headrace.core.errors import (
    ConfigError,
    DataError,
    HeadraceError,
    ModelContractError,
    OverloadedError,
    SequenceError,
)
from headrace.core.sequence import parse_sequence_id
from headrace.core.tensor import InferRequest, InferResponse
from headrace.jobs.access import Access, ApiKey, Scope
from headrace.protocols.oip_documents import ERROR_KIND
from headrace.protocols.oip_grpc.requests import DIALECT_KEY, GrpcWireRequest, decode_request
from headrace.protocols.oip_grpc.responses import encode_response, encode_stream_error, wrap_stream_response
from headrace.server.dataplane import Dataplane, bf16_outputs
from headrace.server.errors import status_of
from headrace.server.listener import GrpcCall, StreamDialect
from headrace.server.observation import CURRENT, RequestObservation

CANCEL_NOTICE_S: Final = 0.005
"""The seconds between the end of the messages of a cancelled call and the cancellation. gRPC
transports report the end first, and a sequence that ends with its stream must know the difference.
"""
GRPC_ERROR_KEY: Final = "triton_grpc_error"
"""The key of the call metadata by which a Triton client requests that an error ends the stream."""
_QUEUE_EMPTY: Final = object()


@dataclass(frozen=True, slots=True)
class GrpcStreamSettings:
    """The settings of gRPC streams.

    In a Triton stream, `requests_max` limits the concurrent requests and `responses_max` the
    responses that wait to be sent.
    """

    dialect: StreamDialect = "mlserver"
    requests_max: int = 64
    responses_max: int = 16

    def __post_init__(self) -> None:
        if self.dialect not in ("mlserver", "triton"):
            raise ConfigError(f"the stream dialect must be mlserver or triton, not {self.dialect!r}")
        if min(self.requests_max, self.responses_max) < 1:
            raise ConfigError("requests_max and answers_max of streams must be at least 1")


class GrpcInference:
    """The methods of inference, and the steps that they share.

    Args:
        dataplane: The models.
        access: The API keys, checked before a request is decoded; None requires no key.
        now: Monotonic seconds of the dataplane's clock.
        streams: The response format and the limits of streams.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        access: Access | None = None,
        now: Callable[[], float] = time.monotonic,
        streams: GrpcStreamSettings | None = None,
    ) -> None:
        self.dataplane = dataplane
        self.streams = streams or GrpcStreamSettings()
        self._access = access or Access()
        self._now = now

    def check(self, call: GrpcCall, *scopes: Scope) -> ApiKey:
        """Return the key of the client, and count the call as a request of it.

        The key needs one of the scopes; the default is INFER.

        Raises:
            UnauthenticatedError: The key is missing or unknown.
            ForbiddenError: The key has none of the scopes.
            OverloadedError: The key has reached its limit of requests.
        """
        key = self.authenticate(call, *scopes)
        self._access.admit(key)
        return key

    def authenticate(self, call: GrpcCall, *scopes: Scope) -> ApiKey:
        """Return the key of the client. Raises UnauthenticatedError and ForbiddenError as `check` does."""
        key = self._access.check(call.metadata("authorization"), *(scopes or (Scope.INFER,)))
        observation = CURRENT.get()
        if observation is not None:
            observation.client = key.name
        return key

    def decode(self, call: GrpcCall, data: bytes, key: ApiKey) -> GrpcWireRequest:
        """Return a decoded request with the deadline of its call, and count it as a request of the key.

        Its sequences belong to the tenant of the key.

        Raises:
            DataError: The message is malformed.
            ForbiddenError: The key may not use the model.
            OverloadedError: The key has reached its limit of requests.
        """
        self._access.admit(key)
        remaining_s, now = call.remaining_s(), self._now()
        wire = decode_request(data, now=now, deadline=None if remaining_s is None else now + remaining_s)
        # Later messages of a stream may leave the model out.
        if wire.model and key.models is not None:
            key.require_model(wire.model)
        return wire._replace(request=wire.request.within(key.tenant)) if key.tenant else wire

    def encode(self, wire: GrpcWireRequest, response: InferResponse, *, final: bool | None = None) -> bytes:
        """Return the encoded response, with raw contents if the request had them.

        Raises:
            ModelContractError: An output cannot be encoded.
        """
        try:
            return encode_response(
                response,
                raw=wire.raw,
                id=wire.request.id,
                datatypes=bf16_outputs(self.dataplane.metadata(wire.model, wire.version)),
                final=final,
            )
        except (DataError, TypeError) as error:
            raise ModelContractError(wire.model, f"its response cannot be encoded: {error}") from error

    def model_infer(self, call: GrpcCall, data: bytes) -> bytes | Awaitable[bytes]:
        """Handle ModelInfer."""
        key = self.authenticate(call)
        wire = self.decode(call, data, key)
        observation = CURRENT.get()
        if observation is not None:
            observation.model, observation.version = wire.model, wire.version
            observation.on_request(wire.request)
        times = None if observation is None else observation.times
        response = self.dataplane.infer_now(wire.model, wire.version, wire.request, times)
        if response is None:
            return self._model_infer(wire, observation)
        return self._encode_response(wire, response, observation)

    async def _model_infer(self, wire: GrpcWireRequest, observation: RequestObservation | None) -> bytes:
        times = None if observation is None else observation.times
        response = await self.dataplane.infer(wire.model, wire.version, wire.request, times)
        return self._encode_response(wire, response, observation)

    def _encode_response(
        self, wire: GrpcWireRequest, response: InferResponse, observation: RequestObservation | None
    ) -> bytes:
        if observation is not None:
            observation.version = response.model_version or wire.version
        return self.encode(wire, response)

    def model_stream_infer(
        self, call: GrpcCall, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Handle one ModelStreamInfer in the format that its metadata or the listener selects."""
        # Every message counts as a request of the key, as it would in a call of its own.
        key = self.authenticate(call)
        dialect = call.metadata(DIALECT_KEY)
        if dialect is None:
            dialect = "triton" if call.metadata(GRPC_ERROR_KEY) else self.streams.dialect
        if dialect not in ("mlserver", "triton"):
            raise DataError(f"{DIALECT_KEY} must be mlserver or triton, not {dialect[:40]!r}")
        if dialect == "triton":
            return _TritonStream(self, call, key).response_batches(messages)
        return _mlserver_responses(self, call, key, messages)


async def _mlserver_responses(
    inference: GrpcInference, call: GrpcCall, key: ApiKey, messages: AsyncIterator[bytes]
) -> AsyncGenerator[Sequence[bytes], None]:
    first = await anext(messages, None)
    if first is None:
        return
    wire = inference.decode(call, first, key)
    if wire.empty_final:
        # Only Triton clients set this parameter.
        async with aclosing(
            _TritonStream(inference, call, key).response_batches(messages, wire)
        ) as response_batches:
            async for response in response_batches:
                yield response
        return
    dataplane = inference.dataplane
    metadata = dataplane.metadata(wire.model, wire.version)
    requests = _SingleModelRequests(
        inference, call, key, wire, messages, end_delay_s=CANCEL_NOTICE_S if metadata.is_stateful else 0.0
    )
    if not metadata.can_stream:
        async for request in requests:
            yield (inference.encode(wire, await dataplane.infer(wire.model, wire.version, request)),)
        return
    ready: list[bytes] = []
    try:
        async with aclosing(
            dataplane.stream_requests(wire.model, wire.version, requests)
        ) as response_batches:
            async for responses in response_batches:
                ready = []
                for response in responses:
                    ready.append(inference.encode(wire, response))
                yield ready
                ready = []
    except Exception:
        if ready:
            yield ready
        # The malformed message explains the failure better than the error that the model made of
        # it.
        requests.raise_message_error()
        raise
    requests.raise_message_error()


class _SingleModelRequests:
    """The requests of a stream, all for the model of the first one.

    The apparent end of the messages is trusted only after `end_delay_s` seconds, because a
    cancelled call looks the same until then.
    """

    def __init__(
        self,
        inference: GrpcInference,
        call: GrpcCall,
        key: ApiKey,
        first: GrpcWireRequest,
        messages: AsyncIterator[bytes],
        *,
        end_delay_s: float,
    ) -> None:
        self._end_delay_s = end_delay_s
        self._inference = inference
        self._call = call
        self._key = key
        self._first = first
        self._messages = messages
        self._first_taken = False
        self._message_error: HeadraceError | None = None

    def raise_message_error(self) -> None:
        """Raise the error of a malformed or refused message, if there was one."""
        if self._message_error is not None:
            raise self._message_error

    def __aiter__(self) -> "_SingleModelRequests":
        return self

    async def __anext__(self) -> InferRequest:
        if not self._first_taken:
            self._first_taken = True
            return self._first.request
        self.raise_message_error()
        data = await anext(self._messages, None)
        if data is None:
            if self._end_delay_s:
                await asyncio.sleep(self._end_delay_s)
            raise StopAsyncIteration
        try:
            wire = self._inference.decode(self._call, data, self._key)
            self._check(wire)
        except (DataError, OverloadedError) as error:
            self._message_error = error
            raise
        return wire.request

    def _check(self, wire: GrpcWireRequest) -> None:
        first = self._first
        if wire.model not in ("", first.model) or wire.version not in ("", first.version):
            raise DataError(
                f"all messages of a stream must name the model of the first one, {first.model!r} version "
                f"{first.version!r}; "
                f"this message names {wire.model!r} version {wire.version!r}"
            )


class _TritonStream:
    """One stream in Triton's format: every message is a separate request."""

    def __init__(self, inference: GrpcInference, call: GrpcCall, key: ApiKey) -> None:
        settings = inference.streams
        self._inference = inference
        self._call = call
        self._key = key
        self._errors_end = call.metadata(GRPC_ERROR_KEY) == "true"
        self._request_slots = asyncio.Semaphore(settings.requests_max)
        self._responses: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(settings.responses_max)
        self._sending = asyncio.Lock()
        """Held while a response waits for the queue. A full queue alone would let newer responses
        overtake.
        """
        self._latest: dict[tuple[str, str], asyncio.Task[None]] = {}
        """The last unfinished request of each sequence, by model and id."""

    async def response_batches(
        self, messages: AsyncIterator[bytes], first: GrpcWireRequest | None = None
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Yield encoded responses as they are ready, until all messages are answered.

        `first` is a message that was already decoded.
        """
        reading = asyncio.create_task(self._read(messages, first))
        try:
            while True:
                ready: list[bytes] = []
                response: object = await self._responses.get()
                while isinstance(response, bytes):
                    ready.append(response)
                    response = _QUEUE_EMPTY if self._responses.empty() else self._responses.get_nowait()
                if ready:
                    yield ready
                if isinstance(response, BaseException):
                    raise response
                if response is None:
                    return
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, messages: AsyncIterator[bytes], first: GrpcWireRequest | None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                if first is not None:
                    await self._begin(group, first)
                async for data in messages:
                    await self._begin(group, data)
        except ExceptionGroup as failed:
            await self._responses.put(failed.exceptions[0])
        else:
            await self._responses.put(None)

    async def _begin(self, group: asyncio.TaskGroup, message: bytes | GrpcWireRequest) -> None:
        await self._request_slots.acquire()
        group.create_task(self._respond(message)).add_done_callback(lambda _: self._request_slots.release())

    async def _respond(self, message: bytes | GrpcWireRequest) -> None:
        model = id = ""
        previous = None
        try:
            if isinstance(message, bytes):
                message = self._inference.decode(self._call, message, self._key)
            wire = message
            model, id = wire.model, wire.request.id
            previous = self._previous(wire)
            if self._inference.dataplane.metadata(wire.model, wire.version).can_stream:
                await self._stream(wire, previous)
            else:
                response = await self._inference.dataplane.infer(wire.model, wire.version, wire.request)
                encoded = self._inference.encode(wire, response, final=True)
                await self._send(wrap_stream_response(encoded), previous)
        except Exception as error:  # noqa: BLE001 - any error ends this request, not the stream
            await self._send(error if self._errors_end else _encode_error(error, model, id), previous)

    def _previous(self, wire: GrpcWireRequest) -> "asyncio.Task[None] | None":
        """Return the task of the request before this one in its sequence, if that is unfinished."""
        id = ""
        with suppress(DataError):  # the model refuses an invalid id, if it has sequences
            id = parse_sequence_id(wire.request.parameters.get("sequence_id", ""))
        task: asyncio.Task[None] | None = asyncio.current_task()
        if not id or task is None:
            return None
        key = (wire.model, id)
        previous, self._latest[key] = self._latest.get(key), task
        task.add_done_callback(lambda _: self._forget(key, task))
        return previous

    def _forget(self, key: tuple[str, str], task: "asyncio.Task[None]") -> None:
        if self._latest.get(key) is task:
            del self._latest[key]

    async def _send(self, response: bytes | BaseException, previous: "asyncio.Task[None] | None") -> None:
        """Send a response after those of the previous request of its sequence.

        A coroutine may find its response at once while an earlier one is still to be resumed.
        """
        if previous is not None and not previous.done():
            await asyncio.wait([previous])
        async with self._sending:
            await self._responses.put(response)

    async def _stream(self, wire: GrpcWireRequest, previous: "asyncio.Task[None] | None") -> None:
        dataplane, encode = self._inference.dataplane, self._inference.encode
        async with aclosing(
            dataplane.stream_request(wire.model, wire.version, wire.request)
        ) as response_batches:
            async for responses in response_batches:
                for response in responses:
                    await self._send(wrap_stream_response(encode(wire, response, final=False)), previous)
        if wire.empty_final:
            metadata = dataplane.metadata(wire.model, wire.version)
            last = InferResponse((), metadata.name, metadata.version or wire.version)
            await self._send(wrap_stream_response(encode(wire, last, final=True)), previous)


def _encode_error(error: Exception, model: str, id: str) -> bytes:
    """Return an error as one more response. The error of a sequence has its id and kind."""
    status = status_of(error)
    parameters: dict[str, str] = {}
    if isinstance(error, SequenceError):
        parameters = {ERROR_KIND: status.kind, "sequence_id": error.sequence_id}
    return encode_stream_error(status.why, model=model, id=id, parameters=parameters)
