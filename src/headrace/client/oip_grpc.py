"""A model server asked over gRPC. The clients' door to grpcio (extra `grpc`); the servers' is `server.grpc_aio`."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Self, TypeVar

from headrace.client.server import ModelAddress
from headrace.core.errors import (
    DataError,
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    MissingExtraError,
    UnsupportedError,
)
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols.oip_grpc import client as wire

try:
    import grpc as _grpc
    from grpc import aio as _aio
except ImportError as error:
    raise MissingExtraError("grpc", "asking a server over gRPC") from error

grpc: Any = _grpc  # it carries no types
aio: Any = _aio

MESSAGE_BYTES_MAX: Final = 1 << 30
"""An answer longer than this is refused."""
_SERVICE: Final = "/inference.GRPCInferenceService/"
# The server may answer when asked again, or was not reached at all.
_UNAVAILABLE: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
# No request like this can succeed, with whatever rows.
_WHOLE: Final = ("CANCELLED", "NOT_FOUND", "PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED")
_T = TypeVar("_T")


def may_be_about_rows(code: str) -> bool:
    """Whether a request that was refused with this status may be answered when it has fewer rows."""
    return code not in _WHOLE


class GrpcServer:
    """Implements `ModelServer`.

    `target` is host:port; `timeout_s` is for each question, and for each wait for the next item of a stream. Streams are asked
    for in the dialect of MLServer, which headrace answers in; Triton's own answers are not read.
    """

    def __init__(
        self, target: str, *, tls: bool = False, api_key: str | None = None, timeout_s: float = 60.0
    ) -> None:
        self.url = f"{'grpcs' if tls else 'grpc'}://{target}"
        self._target = target
        self._tls = tls
        self._timeout_s = timeout_s
        self._metadata: tuple[tuple[str, str], ...] = (
            () if api_key is None else (("authorization", f"Bearer {api_key}"),)
        )
        self._channel: Any = None
        self._datatypes: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """See `ModelServer`."""
        options = [
            ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_retries", 0),
        ]
        if self._tls:
            credentials = grpc.ssl_channel_credentials()
            self._channel = aio.secure_channel(self._target, credentials, options=options)
        else:
            self._channel = aio.insecure_channel(self._target, options=options)
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `ModelServer`."""
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        """See `ModelServer`."""
        question = wire.encode_metadata_request(model.name, model.version)
        metadata = await self._asked("ModelMetadata", question, wire.decode_metadata)
        self._datatypes = {s.name: s.datatype for s in metadata.inputs}
        return metadata

    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        """See `ModelServer`; tensors always go as raw bytes."""
        del binary
        return await self._asked("ModelInfer", self._request(model, request), wire.decode_response)

    async def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """See `ModelServer`."""
        method = f"{_SERVICE}ModelStreamInfer"
        call = self._channel.stream_stream(method)(
            iter((self._request(model, request),)), metadata=(*self._metadata, wire.STREAM_DIALECT)
        )
        try:
            while True:
                async with asyncio.timeout(self._timeout_s):
                    answer = await call.read()
                if answer is aio.EOF:
                    return
                yield self._decoded(answer, wire.decode_response)
        except TimeoutError as error:
            raise self._late() from error
        except aio.AioRpcError as error:
            raise self._refusal(error) from error
        finally:
            call.cancel()

    async def index(self) -> tuple[ModelIndexEntry, ...]:
        """See `ModelServer`."""
        return await self._asked("RepositoryIndex", wire.encode_index_request(), wire.decode_index)

    async def load(self, model: str) -> None:
        """See `ModelServer`."""
        await self._asked("RepositoryModelLoad", wire.encode_load_request(model), bytes)

    async def unload(self, model: str) -> None:
        """See `ModelServer`."""
        await self._asked("RepositoryModelUnload", wire.encode_unload_request(model), bytes)

    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        """See `ModelServer`."""
        question = wire.encode_statistics_request(model)
        return await self._asked("ModelStatistics", question, wire.decode_statistics)

    async def sequences(self, model: ModelAddress, *, most: int) -> SequenceListing:
        """See `ModelServer`."""
        raise _rest_only(model, most)

    async def cancel_sequence(self, model: ModelAddress, id: str) -> None:
        """See `ModelServer`."""
        raise _rest_only(model, id)

    def _request(self, model: ModelAddress, request: InferRequest) -> bytes:
        return wire.encode_request(model.name, model.version, request, datatypes=self._datatypes)

    async def _asked(self, method: str, question: bytes, decode: Callable[[bytes], _T]) -> _T:
        assert self._channel is not None, "the connection is not open"
        ask = self._channel.unary_unary(f"{_SERVICE}{method}")
        try:
            answer = await ask(question, timeout=self._timeout_s, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise self._refusal(error) from error
        return self._decoded(answer, decode)

    def _decoded(self, answer: bytes, decode: Callable[[bytes], _T]) -> _T:
        try:
            return decode(answer)
        except DataError as error:
            why = f"its answer is not one of the Open Inference Protocol: {error}"
            raise EndpointError(self.url, why) from error

    def _refusal(self, error: Any) -> EndpointError:
        code, details = error.code().name, error.details() or "it gives no reason"
        if code == "DEADLINE_EXCEEDED":
            return self._late(details)
        if code == "UNAVAILABLE" and "connect" in details:
            why = f"not reached: {details}. Is the server up and the URL right?"
            return EndpointUnavailableError(self.url, why)
        if code not in _UNAVAILABLE or (code == "ABORTED" and _is_of_a_sequence(error)):
            refused = EndpointRefusedError(self.url, f"{code}: {details}")
            refused.may_be_about_rows = may_be_about_rows(code)
            return refused
        return EndpointUnavailableError(self.url, f"{code}: {details}")

    def _late(self, details: str = "") -> EndpointUnavailableError:
        said = f" ({details})" if details and details != "Deadline Exceeded" else ""
        return EndpointUnavailableError(self.url, f"no answer within {self._timeout_s:g} s{said}")


def _rest_only(*_: object) -> UnsupportedError:
    return UnsupportedError("sequences are looked after over REST alone: give the server's http:// URL")


def _is_of_a_sequence(error: Any) -> bool:
    """Whether a sequence has lost its state: asking again would not bring it back."""
    return any(key == wire.ERROR_KIND for key, _ in error.trailing_metadata() or ())
