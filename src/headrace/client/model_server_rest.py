"""A client of a model server over REST: the Open Inference Protocol and its extensions.

The extensions are streams, the repository, statistics, instances and sequences.
"""

from collections.abc import AsyncGenerator, AsyncIterable, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Final, Self, TypeVar
from urllib.parse import quote, urlencode

import orjson
from typing_extensions import override

from headrace.client.connection_pool import HttpConnectionPool, HttpRequest
from headrace.client.model_server import ModelAddress, ModelServerClient
from headrace.client.retry import HttpResponse
from headrace.core.clock import TransientFault
from headrace.core.errors import DataError, EndpointError, EndpointRefusedError, EndpointUnavailableError
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import InstanceStatus, ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols.oip_documents import (
    decode_error,
    decode_index,
    decode_instances,
    decode_listing,
    decode_metadata,
    decode_statistics,
    encode_instances_request,
)
from headrace.protocols.oip_json import HEADER_LENGTH, decode_response, encode_request, parse_header_length
from headrace.protocols.sse import EventDecoder

ERROR_BYTES_MAX: Final = 64 << 10
"""Bytes read of the refusal of a stream."""
_JSON: Final = {"Content-Type": "application/json"}
_T = TypeVar("_T")


class RestServerClient(ModelServerClient):
    """A client of a model server over REST.

    Args:
        url: The root of the server, without a trailing slash.
        api_key: A bearer token.
        timeout_s: Seconds for each call, and for each wait for the next item of a stream.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        self.url = url
        self._timeout_s = timeout_s
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._pool = HttpConnectionPool(headers, connections_max=1)
        self._datatypes: dict[str, str] = {}

    @override
    async def __aenter__(self) -> Self:
        await self._pool.__aenter__()
        return self

    @override
    async def __aexit__(self, *_: object) -> None:
        await self._pool.__aexit__()

    @override
    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        metadata = await self._call("GET", _model_path(model), decode_metadata)
        self._datatypes = {s.name: s.datatype for s in metadata.inputs}
        return metadata

    @override
    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        wire = encode_request(request, binary=binary, datatypes=self._datatypes)
        http_request = HttpRequest("POST", f"{self.url}{_model_path(model)}/infer", wire.body, wire.headers)
        response = await self._send(http_request)
        with _translate_data_errors(http_request.url, response.status):
            json_bytes = parse_header_length(response.headers.get(HEADER_LENGTH.lower()))
            return decode_response(response.body, json_bytes, bf16="float32")

    @override
    async def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """Yield the responses of ``generate_stream``.

        MLServer and headrace accept a whole request at this URL.
        """
        wire = encode_request(request, binary=False, datatypes=self._datatypes)
        http_request = HttpRequest(
            "POST", f"{self.url}{_model_path(model)}/generate_stream", wire.body, wire.headers
        )
        try:
            async with self._pool.stream(http_request, self._timeout_s) as response:
                if response.status != 200:
                    body = b""
                    async for chunk in response.chunks:
                        body = (body + chunk)[:ERROR_BYTES_MAX]
                    raise _refusal_error(http_request, HttpResponse(response.status, body, response.headers))
                with _translate_data_errors(http_request.url, response.status):
                    responses = read_responses(response.chunks, http_request.url)
                    async with aclosing(responses):
                        async for item in responses:
                            yield item
        except TransientFault as fault:
            raise _unavailable_error(http_request, fault) from fault

    @override
    async def index(self) -> tuple[ModelIndexEntry, ...]:
        return await self._call("POST", "/v2/repository/index", decode_index, b"{}")

    @override
    async def load(self, model: str) -> None:
        await self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/load", bool, b"{}")

    @override
    async def unload(self, model: str) -> None:
        await self._call("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", bool, b"{}")

    @override
    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        path = f"/v2/models/{quote(model, safe='')}/stats" if model else "/v2/models/stats"
        return await self._call("GET", path, decode_statistics)

    @override
    async def instances(self, model: ModelAddress) -> InstanceStatus:
        return await self._call("GET", f"{_model_path(model)}/instances", decode_instances)

    @override
    async def set_instances(
        self, model: ModelAddress, instances: int, instances_max: int | None = None
    ) -> InstanceStatus:
        body = encode_instances_request(instances, instances_max)
        return await self._call("PUT", f"{_model_path(model)}/instances", decode_instances, body)

    @override
    async def sequences(self, model: ModelAddress, *, limit: int) -> SequenceListing:
        return await self._call("GET", f"{_model_path(model)}/sequences?limit={limit}", decode_listing)

    @override
    async def cancel_sequence(self, model: ModelAddress, id: str, namespace: str | None = None) -> None:
        query = "" if namespace is None else f"?{urlencode({'namespace': namespace})}"
        await self._call("DELETE", f"{_model_path(model)}/sequences/{quote(id, safe='')}{query}", bytes)

    async def _call(self, method: str, path: str, decode: Callable[[bytes], _T], body: bytes = b"") -> _T:
        http_request = HttpRequest(method, f"{self.url}{path}", body, _JSON if body else {})
        response = await self._send(http_request)
        with _translate_data_errors(http_request.url, response.status):
            return decode(response.body)

    async def _send(self, http_request: HttpRequest) -> HttpResponse:
        try:
            response = await self._pool.send(http_request, self._timeout_s)
        except TransientFault as fault:
            raise _unavailable_error(http_request, fault) from fault
        if not 200 <= response.status < 300:
            raise _refusal_error(http_request, response)
        return response


@contextmanager
def _translate_data_errors(url: str, status: int) -> Generator[None, None, None]:
    """Raise a DataError of the context as an EndpointError about the response."""
    try:
        yield
    except DataError as error:
        why = f"its response violates the Open Inference Protocol: {error}"
        raise EndpointError(url, why, status=status) from error


def _model_path(model: ModelAddress) -> str:
    version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
    return f"/v2/models/{quote(model.name, safe='')}{version}"


def _refusal_error(http_request: HttpRequest, response: HttpResponse) -> EndpointError:
    why = decode_error(response.body) or "no reason given"
    if 300 <= response.status < 400:
        why = f"it redirects to {response.headers.get('location', '?')}: use that URL"
    if response.status in (429, 502, 503, 504):
        after = response.headers.get("retry-after")
        later = f" (retry in {after} s)" if after else ""
        return EndpointUnavailableError(
            http_request.url, f"HTTP {response.status}: {why}{later}", status=response.status
        )
    return EndpointRefusedError(http_request.url, f"HTTP {response.status}: {why}", status=response.status)


def _unavailable_error(http_request: HttpRequest, fault: TransientFault) -> EndpointUnavailableError:
    return EndpointUnavailableError(http_request.url, f"{fault}. Is the server up and the URL right?")


async def read_responses(chunks: AsyncIterable[bytes], url: str) -> AsyncGenerator[InferResponse, None]:
    """Yield the response of each event, as soon as it is complete.

    Raises EndpointRefusedError for an error event: the stream failed on the server. Raises
    DataError for an event that is no response.
    """
    decoder = EventDecoder()
    async for chunk in chunks:
        for event in decoder.feed(chunk):
            if _is_error(event):
                raise EndpointRefusedError(url, f"the stream failed: {decode_error(event)}")
            yield decode_response(event, bf16="float32")


def _is_error(event: bytes) -> bool:
    try:
        found = orjson.loads(event)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and "error" in found and "outputs" not in found
