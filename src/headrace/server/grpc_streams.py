"""ModelStreamInfer: one path, two dialects.

MLServer's: the first message says which model, errors end the call. Triton's: every message is a request of its own,
for any model, answered when it is done, and its error is one more answer. The two answer with messages that no client
could tell apart by looking, so the caller (call metadata) or the listener (a setting) chooses.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, Literal

from headrace.core.errors import ConfigError, DataError, SequenceError
from headrace.core.tensor import InferRequest, InferResponse
from headrace.protocols.oip_grpc.requests import WireRequest
from headrace.protocols.oip_grpc.responses import encode_stream_error, wrapped
from headrace.server.errors import ERROR_KIND, status_of
from headrace.server.grpc_contract import Call
from headrace.server.grpc_inference import Inference

StreamDialect = Literal["mlserver", "triton"]

DIALECT_KEY: Final = "headrace-stream-dialect"
"""Call metadata that chooses the dialect of one stream."""
CANCEL_NOTICE_S: Final = 0.005
"""Carriers say that messages have ended when their call is cancelled, and of the cancellation a moment later. To a
sequence that ends with its stream it makes a difference."""
GRPC_ERROR_KEY: Final = "triton_grpc_error"
"""Call metadata by which a Triton client asks that an error ends the stream with a status."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Of streams.

    `requests_max` bounds the requests of one Triton stream that are worked on at once, `answers_max` those of its
    answers that wait to be sent.
    """

    dialect: StreamDialect = "mlserver"
    requests_max: int = 64
    answers_max: int = 16

    def __post_init__(self) -> None:
        if self.dialect not in ("mlserver", "triton"):
            raise ConfigError(f"a stream dialect is mlserver or triton, not {self.dialect!r}")
        if min(self.requests_max, self.answers_max) < 1:
            raise ConfigError("requests_max and answers_max of streams must be at least 1")


class InferenceStreams:
    """ModelStreamInfer in both dialects."""

    def __init__(self, inference: Inference, settings: StreamSettings) -> None:
        self._inference = inference
        self._settings = settings

    def model_stream_infer(
        self, call: Call, messages: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Answer one stream, in the dialect that it asks for, or else in the listener's."""
        self._inference.check(call)
        if self._dialect(call) == "triton":
            return _TritonStream(self._inference, self._settings, call).answers(messages)
        return _mlserver_answers(self._inference, self._settings, call, messages)

    def _dialect(self, call: Call) -> str:
        chosen = call.metadata(DIALECT_KEY)
        if chosen is None:
            return "triton" if call.metadata(GRPC_ERROR_KEY) else self._settings.dialect
        if chosen not in ("mlserver", "triton"):
            raise DataError(f"{DIALECT_KEY} is mlserver or triton, not {chosen[:40]!r}")
        return chosen


async def _mlserver_answers(
    inference: Inference, settings: StreamSettings, call: Call, messages: AsyncIterator[bytes]
) -> AsyncGenerator[Sequence[bytes], None]:
    first = await anext(messages, None)
    if first is None:
        return
    wire = inference.decoded(call, first)
    if wire.empty_final:
        # Nobody but a Triton client says this.
        async with aclosing(_TritonStream(inference, settings, call).answers(messages, wire)) as answers:
            async for answer in answers:
                yield answer
        return
    dataplane = inference.dataplane
    metadata = dataplane.metadata(wire.model, wire.version)
    requests = _SameModel(inference, call, wire, messages, doubt_s=CANCEL_NOTICE_S if metadata.steps else 0.0)
    if not metadata.streams:
        async for request in requests:
            yield (inference.encoded(wire, await dataplane.infer(wire.model, wire.version, request)),)
        return
    ready: list[bytes] = []
    try:
        async with aclosing(dataplane.stream_some(wire.model, wire.version, requests)) as answers:
            async for responses in answers:
                ready = []
                for response in responses:
                    ready.append(inference.encoded(wire, response))
                yield ready
                ready = []
    except Exception:
        if ready:
            yield ready
        # What the model made of a caller's mistake says less than the mistake.
        requests.raise_mistake()
        raise
    requests.raise_mistake()


class _SameModel:
    """The requests of a stream, all for the model of the first.

    What looks like their end is believed after `doubt_s`: until then it may be that the caller has cancelled.
    """

    def __init__(
        self,
        inference: Inference,
        call: Call,
        first: WireRequest,
        messages: AsyncIterator[bytes],
        *,
        doubt_s: float,
    ) -> None:
        self._doubt_s = doubt_s
        self._inference = inference
        self._call = call
        self._first = first
        self._messages = messages
        self._begun = False
        self._mistake: DataError | None = None

    def raise_mistake(self) -> None:
        """Raise what was wrong with a message, if any was."""
        if self._mistake is not None:
            raise self._mistake

    def __aiter__(self) -> "_SameModel":
        return self

    async def __anext__(self) -> InferRequest:
        if not self._begun:
            self._begun = True
            return self._first.request
        self.raise_mistake()
        data = await anext(self._messages, None)
        if data is None:
            if self._doubt_s:
                await asyncio.sleep(self._doubt_s)
            raise StopAsyncIteration
        try:
            wire = self._inference.decoded(self._call, data)
            self._check(wire)
        except DataError as error:
            self._mistake = error
            raise
        return wire.request

    def _check(self, wire: WireRequest) -> None:
        first = self._first
        if wire.model not in ("", first.model) or wire.version not in ("", first.version):
            raise DataError(
                f"a stream keeps to the model of its first message, {first.model!r} version {first.version!r}; "
                f"this message names {wire.model!r} version {wire.version!r}"
            )


_LATER: Final = object()


class _TritonStream:
    """One stream whose messages are requests of their own."""

    def __init__(self, inference: Inference, settings: StreamSettings, call: Call) -> None:
        self._inference = inference
        self._call = call
        self._errors_end = call.metadata(GRPC_ERROR_KEY) == "true"
        self._free = asyncio.Semaphore(settings.requests_max)
        self._answers: asyncio.Queue[bytes | BaseException | None] = asyncio.Queue(settings.answers_max)
        self._sending = asyncio.Lock()
        """Held while an answer waits for room: a full queue lets those go first who come while there is some."""

    async def answers(
        self, messages: AsyncIterator[bytes], first: WireRequest | None = None
    ) -> AsyncGenerator[Sequence[bytes], None]:
        """Answers as they come, until all messages are answered; `first` was read already."""
        reading = asyncio.create_task(self._read(messages, first))
        try:
            while True:
                ready: list[bytes] = []
                answer: object = await self._answers.get()
                while isinstance(answer, bytes):
                    ready.append(answer)
                    answer = _LATER if self._answers.empty() else self._answers.get_nowait()
                if ready:
                    yield ready
                if isinstance(answer, BaseException):
                    raise answer
                if answer is None:
                    return
        finally:
            reading.cancel()
            await asyncio.wait([reading])

    async def _read(self, messages: AsyncIterator[bytes], first: WireRequest | None) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                if first is not None:
                    await self._begin(group, first)
                async for data in messages:
                    await self._begin(group, data)
        except ExceptionGroup as failed:
            await self._answers.put(failed.exceptions[0])
        else:
            await self._answers.put(None)

    async def _begin(self, group: asyncio.TaskGroup, message: bytes | WireRequest) -> None:
        await self._free.acquire()
        group.create_task(self._answer(message)).add_done_callback(lambda _: self._free.release())

    async def _answer(self, message: bytes | WireRequest) -> None:
        model = id = ""
        try:
            wire = self._inference.decoded(self._call, message) if isinstance(message, bytes) else message
            model, id = wire.model, wire.request.id
            if self._inference.dataplane.metadata(wire.model, wire.version).streams:
                await self._stream(wire)
            else:
                response = await self._inference.dataplane.infer(wire.model, wire.version, wire.request)
                await self._send(wrapped(self._inference.encoded(wire, response, final=True)))
        except Exception as error:  # noqa: BLE001 - whatever it is ends this request, not the stream
            await self._send(error if self._errors_end else _told(error, model, id))

    async def _send(self, answer: bytes | BaseException) -> None:
        """In the order in which it is called, so that what one sequence answers stays in its order."""
        async with self._sending:
            await self._answers.put(answer)

    async def _stream(self, wire: WireRequest) -> None:
        dataplane, encoded = self._inference.dataplane, self._inference.encoded
        async with aclosing(dataplane.stream_one(wire.model, wire.version, wire.request)) as answers:
            async for responses in answers:
                for response in responses:
                    await self._send(wrapped(encoded(wire, response, final=False)))
        if wire.empty_final:
            metadata = dataplane.metadata(wire.model, wire.version)
            last = InferResponse((), metadata.name, metadata.version or wire.version)
            await self._send(wrapped(encoded(wire, last, final=True)))


def _told(error: Exception, model: str, id: str) -> bytes:
    """An error as one more answer; of a sequence's, which sequence and which error."""
    status = status_of(error)
    parameters: dict[str, str] = {}
    if isinstance(error, SequenceError):
        parameters = {ERROR_KIND: status.kind, "sequence_id": error.sequence_id}
    return encode_stream_error(status.why, model=model, id=id, parameters=parameters)
