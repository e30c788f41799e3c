"""A model server asked over REST: the Open Inference Protocol with the extensions for streams, repository and statistics."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing, contextmanager
from typing import Final, Self, TypeVar
from urllib.parse import quote

from headrace.client.connection import Connection, HttpCall
from headrace.client.retry import HttpAnswer, TransientFault
from headrace.client.server import ModelAddress
from headrace.client.sse_stream import read_responses
from headrace.core.errors import DataError, EndpointError, EndpointRefusedError, EndpointUnavailableError
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import ModelIndexEntry, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols.oip_json import (
    HEADER_LENGTH,
    decode_error,
    decode_metadata,
    decode_response,
    encode_request,
    header_length,
)
from headrace.protocols.oip_repository import decode_index, decode_statistics
from headrace.protocols.oip_sequences import decode_listing

ERROR_BYTES_MAX: Final = 64 << 10
"""Read of a refusal to begin a stream."""
_JSON: Final = {"Content-Type": "application/json"}
_T = TypeVar("_T")


class RestServer:
    """Implements `ModelServer`.

    `url` is the root, without a slash at its end; `timeout_s` is for each question, and for each wait for the next item of
    a stream.
    """

    def __init__(self, url: str, *, api_key: str | None = None, timeout_s: float = 60.0) -> None:
        self.url = url
        self._timeout_s = timeout_s
        headers = {} if api_key is None else {"Authorization": f"Bearer {api_key}"}
        self._connection = Connection(headers, connections_max=1)
        self._datatypes: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        """See `ModelServer`."""
        await self._connection.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        """See `ModelServer`."""
        await self._connection.__aexit__()

    async def metadata(self, model: ModelAddress) -> ModelMetadata:
        """See `ModelServer`."""
        metadata = await self._asked("GET", _path(model), decode_metadata)
        self._datatypes = {s.name: s.datatype for s in metadata.inputs}
        return metadata

    async def infer(self, model: ModelAddress, request: InferRequest, *, binary: bool) -> InferResponse:
        """See `ModelServer`."""
        wire = encode_request(request, binary=binary, datatypes=self._datatypes)
        call = HttpCall("POST", f"{self.url}{_path(model)}/infer", wire.body, wire.headers)
        answer = await self._answer(call)
        with _as_answer(call.url, answer.status):
            json_bytes = header_length(answer.headers.get(HEADER_LENGTH.lower()))
            return decode_response(answer.body, json_bytes, bf16="float32")

    async def stream(self, model: ModelAddress, request: InferRequest) -> AsyncGenerator[InferResponse, None]:
        """See `ModelServer`; asked as ``generate_stream``, which MLServer and headrace answer to a whole request."""
        wire = encode_request(request, binary=False, datatypes=self._datatypes)
        call = HttpCall("POST", f"{self.url}{_path(model)}/generate_stream", wire.body, wire.headers)
        try:
            async with self._connection.stream(call, self._timeout_s) as answer:
                if answer.status != 200:
                    body = b""
                    async for piece in answer.pieces:
                        body = (body + piece)[:ERROR_BYTES_MAX]
                    raise _refusal(call, HttpAnswer(answer.status, body, answer.headers))
                with _as_answer(call.url, answer.status):
                    responses = read_responses(answer.pieces, call.url)
                    async with aclosing(responses):
                        async for response in responses:
                            yield response
        except TransientFault as fault:
            raise _unavailable(call, fault) from fault

    async def index(self) -> tuple[ModelIndexEntry, ...]:
        """See `ModelServer`."""
        return await self._asked("POST", "/v2/repository/index", decode_index, b"{}")

    async def load(self, model: str) -> None:
        """See `ModelServer`."""
        await self._asked("POST", f"/v2/repository/models/{quote(model, safe='')}/load", bool, b"{}")

    async def unload(self, model: str) -> None:
        """See `ModelServer`."""
        await self._asked("POST", f"/v2/repository/models/{quote(model, safe='')}/unload", bool, b"{}")

    async def statistics(self, model: str = "") -> tuple[ModelStatistics, ...]:
        """See `ModelServer`."""
        path = f"/v2/models/{quote(model, safe='')}/stats" if model else "/v2/models/stats"
        return await self._asked("GET", path, decode_statistics)

    async def sequences(self, model: ModelAddress, *, most: int) -> SequenceListing:
        """See `ModelServer`."""
        return await self._asked("GET", f"{_path(model)}/sequences?limit={most}", decode_listing)

    async def cancel_sequence(self, model: ModelAddress, id: str) -> None:
        """See `ModelServer`."""
        await self._asked("DELETE", f"{_path(model)}/sequences/{quote(id, safe='')}", bytes)

    async def _asked(self, method: str, path: str, decode: Callable[[bytes], _T], body: bytes = b"") -> _T:
        call = HttpCall(method, f"{self.url}{path}", body, _JSON if body else {})
        answer = await self._answer(call)
        with _as_answer(call.url, answer.status):
            return decode(answer.body)

    async def _answer(self, call: HttpCall) -> HttpAnswer:
        try:
            answer = await self._connection.send(call, self._timeout_s)
        except TransientFault as fault:
            raise _unavailable(call, fault) from fault
        if not 200 <= answer.status < 300:
            raise _refusal(call, answer)
        return answer


@contextmanager
def _as_answer(url: str, status: int) -> Generator[None, None, None]:
    """Within it, a DataError is about what the server answered."""
    try:
        yield
    except DataError as error:
        why = f"its answer is not one of the Open Inference Protocol: {error}"
        raise EndpointError(url, why, status=status) from error


def _path(model: ModelAddress) -> str:
    version = f"/versions/{quote(model.version, safe='')}" if model.version else ""
    return f"/v2/models/{quote(model.name, safe='')}{version}"


def _refusal(call: HttpCall, answer: HttpAnswer) -> EndpointError:
    why = decode_error(answer.body) or "it gives no reason"
    if 300 <= answer.status < 400:
        why = f"it redirects to {answer.headers.get('location', '?')}: give that URL"
    if answer.status in (429, 502, 503, 504):
        after = answer.headers.get("retry-after")
        later = f" (ask again in {after} s)" if after else ""
        return EndpointUnavailableError(call.url, f"HTTP {answer.status}: {why}{later}", status=answer.status)
    return EndpointRefusedError(call.url, f"HTTP {answer.status}: {why}", status=answer.status)


def _unavailable(call: HttpCall, fault: TransientFault) -> EndpointUnavailableError:
    return EndpointUnavailableError(call.url, f"{fault}. Is the server up and the URL right?")
