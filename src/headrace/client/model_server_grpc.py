"""A client of a model server over gRPC.

This is the adapter module of grpcio (extra `grpc`) for clients; the one for servers is
`server.grpc_aio`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final, Self, TypeVar

from typing_extensions import override

from headrace.client.model_server import ModelAddress, ModelServerClient
from headrace.core.errors import (
    DataError,
    EndpointError,
    EndpointRefusedError,
    EndpointUnavailableError,
    MissingExtraError,
    UnsupportedError,
)
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import InstanceStatus, ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols.oip_documents import ERROR_KIND
from headrace.protocols.oip_grpc.requests import DIALECT_KEY, encode_request
from headrace.protocols.oip_grpc.responses import decode_response
from headrace.protocols.oip_grpc.server_info import decode_index, decode_metadata, decode_statistics
from headrace.protocols.protobuf import encode_message

try:
    import grpc as _grpc
    from grpc import aio as _aio
except ImportError as error:
    raise MissingExtraError("grpc", "calling a server over gRPC") from error

grpc: Any = _grpc  # grpcio ships no types
aio: Any = _aio

MESSAGE_BYTES_MAX: Final = 1 << 30
"""The limit of a response in bytes."""
_SERVICE: Final = "/inference.GRPCInferenceService/"
# The server was not reached, or may respond to a retry.
_UNAVAILABLE_CODES: Final = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
# No request like this one can succeed, with any rows.
_REQUEST_REFUSED_CODES: Final = (
    "CANCELLED",
    "NOT_FOUND",
    "PERMISSION_DENIED",
    "UNAUTHENTICATED",
    "UNIMPLEMENTED",
)
_T = TypeVar("_T")


def may_be_about_rows(code: str) -> bool:
    """Return True if a request with fewer rows may succeed after a refusal with this status."""
    return code not in _REQUEST_REFUSED_CODES


class GrpcServerClient(ModelServerClient):
    """A client of a model server over gRPC.

    Streams use the MLServer variant of the protocol, which headrace serves. Triton's stream
    responses are not supported.

    Args:
        target: The address as host:port.
        tls: True for TLS.
        api_key: A bearer token.
        timeout_s: Seconds for each call, and for each wait for the next item of a stream.
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

    @override
    async def __aenter__(self) -> Self:
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

    @override
    async def __aexit__(self, *_: object) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    @override
    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        message = encode_message("ModelMetadataRequest", name=model.name, version=model.version)
        metadata = await self._call("ModelMetadata", message, decode_metadata)
        self._datatypes = {s.name: s.datatype for s in metadata.inputs}
        return metadata

    @override
    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        """Return the response to a request. Tensors always travel as raw bytes."""
        del binary
        return await self._call("ModelInfer", self._request(model, request), decode_response)

    @override
    async def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        method = f"{_SERVICE}ModelStreamInfer"
        call = self._channel.stream_stream(method)(
            iter((self._request(model, request),)), metadata=(*self._metadata, (DIALECT_KEY, "mlserver"))
        )
        try:
            while True:
                async with asyncio.timeout(self._timeout_s):
                    response = await call.read()
                if response is aio.EOF:
                    return
                yield self._decode(response, decode_response)
        except TimeoutError as error:
            raise self._timeout_error() from error
        except aio.AioRpcError as error:
            raise self._translate_error(error) from error
        finally:
            call.cancel()

    @override
    async def index(self) -> tuple[ModelIndexEntry, ...]:
        return await self._call("RepositoryIndex", encode_message("RepositoryIndexRequest"), decode_index)

    @override
    async def load(self, model: str) -> None:
        await self._call(
            "RepositoryModelLoad", encode_message("RepositoryModelLoadRequest", model_name=model), bytes
        )

    @override
    async def unload(self, model: str) -> None:
        await self._call(
            "RepositoryModelUnload", encode_message("RepositoryModelUnloadRequest", model_name=model), bytes
        )

    @override
    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        message = encode_message("ModelStatisticsRequest", name=model)
        return await self._call("ModelStatistics", message, decode_statistics)

    @override
    async def instances(self, model: ModelAddress) -> InstanceStatus:
        raise _rest_only_error("the numbers of instances", model)

    @override
    async def set_instances(
        self, model: ModelAddress, instances: int, instances_max: int | None = None
    ) -> InstanceStatus:
        raise _rest_only_error("the numbers of instances", model, instances, instances_max)

    @override
    async def sequences(self, model: ModelAddress, *, limit: int) -> SequenceListing:
        raise _rest_only_error("sequences", model, limit)

    @override
    async def cancel_sequence(self, model: ModelAddress, id: str, namespace: str | None = None) -> None:
        raise _rest_only_error("sequences", model, id)

    def _request(self, model: ModelAddress, request: InferRequest) -> bytes:
        return encode_request(model.name, model.version, request, datatypes=self._datatypes)

    async def _call(self, method: str, message: bytes, decode: Callable[[bytes], _T]) -> _T:
        assert self._channel is not None, "the connection is not open"
        call = self._channel.unary_unary(f"{_SERVICE}{method}")
        try:
            response = await call(message, timeout=self._timeout_s, metadata=self._metadata)
        except aio.AioRpcError as error:
            raise self._translate_error(error) from error
        return self._decode(response, decode)

    def _decode(self, response: bytes, decode: Callable[[bytes], _T]) -> _T:
        try:
            return decode(response)
        except DataError as error:
            why = f"its response violates the Open Inference Protocol: {error}"
            raise EndpointError(self.url, why) from error

    def _translate_error(self, error: Any) -> EndpointError:
        code, details = error.code().name, error.details() or "no reason given"
        if code == "DEADLINE_EXCEEDED":
            return self._timeout_error(details)
        if code == "UNAVAILABLE" and "connect" in details:
            why = f"not reached: {details}. Is the server up and the URL right?"
            return EndpointUnavailableError(self.url, why)
        if code not in _UNAVAILABLE_CODES or (code == "ABORTED" and _is_sequence_error(error)):
            refused = EndpointRefusedError(self.url, f"{code}: {details}")
            refused.may_be_about_rows = may_be_about_rows(code)
            return refused
        return EndpointUnavailableError(self.url, f"{code}: {details}")

    def _timeout_error(self, details: str = "") -> EndpointUnavailableError:
        reason = f" ({details})" if details and details != "Deadline Exceeded" else ""
        return EndpointUnavailableError(self.url, f"no response within {self._timeout_s:g} s{reason}")


def _rest_only_error(feature: str, *_: object) -> UnsupportedError:
    return UnsupportedError(f"{feature} are available only over REST: use the server's http:// URL")


def _is_sequence_error(error: Any) -> bool:
    """Return True if a sequence has lost its state: a retry would not restore it."""
    return any(key == ERROR_KIND for key, _ in error.trailing_metadata() or ())
