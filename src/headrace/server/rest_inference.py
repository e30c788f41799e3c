"""Inference over HTTP: the routes, and the steps that exchanges and the fast path share."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Final

from headrace.core.handle import BODY, HandleRequest
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.access import Scope
from headrace.protocols import oip_json, plain_bodies, sse
from headrace.protocols.oip_documents import encode_error
from headrace.protocols.oip_json import apply_scheduling_parameters
from headrace.server import model_documents as documents
from headrace.server.dataplane import Dataplane
from headrace.server.errors import STATUS_DESCRIPTIONS, STOPPING, error_body, status_of
from headrace.server.http import JSON, Exchange, Headers
from headrace.server.multipart import is_form, parse_form
from headrace.server.routes import Json, route
from headrace.server.settings import RestLimits

HEADER_LENGTH: Final = oip_json.HEADER_LENGTH.lower().encode()
_EVENT_STREAM: Final = sse.CONTENT_TYPE.encode()
_NO_CACHE: Final = ((b"cache-control", b"no-cache"),)
_STOPPING: Final = sse.encode_event(encode_error(STOPPING))
_NONE: Final[Mapping[str, str]] = {}
_OCTETS: Final = b"application/octet-stream"

_ERRORS: Final = tuple(STATUS_DESCRIPTIONS)
_OPAQUE_ERRORS: Final = tuple(status for status in _ERRORS if status not in (409, 410))

_HEADER_LENGTH: Final[Json] = {
    "name": oip_json.HEADER_LENGTH,
    "in": "header",
    "description": (
        "Length of the JSON part in bytes, if binary tensors follow it; 0 for one raw tensor without JSON."
    ),
    "schema": {"type": "integer", "minimum": 0},
}
_TENSORS: Final[Json] = {
    "application/octet-stream": {
        "schema": {
            "type": "string",
            "format": "binary",
            "description": "JSON, followed by the values of each tensor with binary_data_size.",
        }
    }
}
_EVENTS: Final[Json] = {
    "text/event-stream": {
        "schema": {
            "type": "object",
            "properties": {"data": {"type": "string", "contentMediaType": "application/json"}},
            "required": ["data"],
        }
    }
}
_EVENTS_SENT: Final = (
    "One event for each response: `data:` and a JSON document. An error after the first event is the last "
    "event."
)
_ANYTHING: Final[Json] = {"*/*": {"schema": {}}}

_OWN_RESPONSE: Final = "The model's own response."
_INFER: Final = (Scope.INFER,)
MODEL: Final = "/v2/models/{model_name}"
"""The path of a model. The routes below it also exist below the path of a version."""
_REQUEST: Final[Json] = {
    "parameters": (_HEADER_LENGTH,),
    "request": (documents.InferenceRequestDocument,),
    "request_content": _TENSORS,
    "errors": _ERRORS,
}
_GENERATE_REQUEST: Final[Json] = {
    **_REQUEST,
    "request": (documents.GenerateRequestDocument, documents.InferenceRequestDocument),
}
_STREAM: Final[Json] = {"content": _EVENTS, "success": _EVENTS_SENT}


class InferenceHandlers:
    """The handlers of inference routes. `clock` returns monotonic seconds, as in engines."""

    def __init__(self, dataplane: Dataplane, limits: RestLimits, clock: Callable[[], float]) -> None:
        self._dataplane = dataplane
        self._limits = limits
        self._clock = clock

    @route(
        "POST", f"{MODEL}/infer", _INFER, documents.InferenceResponseDocument, content=_TENSORS, **_REQUEST
    )
    async def infer(self, exchange: Exchange) -> None:
        """Return the response of the model to one request."""
        model, version = named_model(exchange)
        # The lookup comes first, so that an unknown model is reported whatever the body is.
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        response = await self._infer_observed(exchange, model, version, wire.request)
        await self._respond(exchange, encode_response_body(response, wire, metadata))

    @route("POST", f"{MODEL}/infer_stream", _INFER, **_REQUEST, **_STREAM)
    async def infer_stream(self, exchange: Exchange) -> None:
        """Send an event for each response of the model."""
        model, version = named_model(exchange)
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        datatypes = bf16_outputs(metadata)

        def encode(response: InferResponse) -> bytes:
            return oip_json.encode_response(response, datatypes=datatypes).body

        await self._respond_streaming(exchange, model, version, wire.request, encode)

    @route(
        "POST",
        f"{MODEL}/handle",
        _INFER,
        request_required=False,
        request_content={**_ANYTHING, "multipart/form-data": {"schema": {}}},
        content=_ANYTHING,
        success=_OWN_RESPONSE,
        responses={"default": {"description": _OWN_RESPONSE, "content": _ANYTHING}},
        errors=_OPAQUE_ERRORS,
    )
    async def handle(self, exchange: Exchange) -> None:
        """Return the response of `Model.handle`, which reads the request itself."""
        model, version = named_model(exchange)
        self._dataplane.metadata(model, version)
        request = read_opaque_request(exchange.headers, await exchange.body(self._limits.body_bytes_max))
        response, chunks = await exchange.while_connected(self._dataplane.handle(model, version, request))
        content_type = response.content_type.encode("latin-1")
        extra = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
        if chunks is None:
            await exchange.respond(response.status, response.body, content_type, extra)
            return
        async with aclosing(chunks):
            await exchange.respond_streaming(content_type, chunks, extra, status=response.status)

    @route(
        "POST",
        f"{MODEL}/generate",
        _INFER,
        (documents.GeneratedDocument, documents.InferenceResponseDocument),
        content=_TENSORS,
        **_GENERATE_REQUEST,
    )
    async def generate(self, exchange: Exchange) -> None:
        """Return the text that the model generates."""
        model, version = named_model(exchange)
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self.infer(exchange)
            return
        response = await self._infer_observed(exchange, model, version, request)
        await self._respond(exchange, oip_json.WireBody(plain_bodies.encode_generate_response(response)))

    @route("POST", f"{MODEL}/generate_stream", _INFER, **_GENERATE_REQUEST, **_STREAM)
    async def generate_stream(self, exchange: Exchange) -> None:
        """Send an event for each text that the model generates."""
        model, version = named_model(exchange)
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self.infer_stream(exchange)
            return
        await self._respond_streaming(
            exchange, model, version, request, plain_bodies.encode_generate_response
        )

    async def _request(self, exchange: Exchange, metadata: ModelMetadata) -> oip_json.JsonWireRequest:
        """Return the decoded inference request, with its deadline and priority."""
        if HEADER_LENGTH in exchange.headers:
            # The header is checked before the body is read, because the body may be large.
            oip_json.parse_header_length(exchange.header(HEADER_LENGTH))
        return read_request(
            exchange.headers, await exchange.body(self._limits.body_bytes_max), metadata, self._clock
        )

    async def _infer_observed(
        self, exchange: Exchange, model: str, version: str, request: InferRequest
    ) -> InferResponse:
        observation = exchange.observation
        if observation is None:
            return await exchange.while_connected(self._dataplane.infer(model, version, request))
        observation.on_request(request)
        response: InferResponse = await exchange.while_connected(
            self._dataplane.infer(model, version, request, observation.times)
        )
        observation.version = response.model_version or version
        return response

    async def _respond(self, exchange: Exchange, body: oip_json.WireBody) -> None:
        content_type, extra = content_headers(body)
        await exchange.respond_compressed(200, body.body, content_type, self._limits.gzip_bytes_min, extra)

    async def _generate_request(self, exchange: Exchange, model: str, version: str) -> InferRequest | None:
        """Return the request of ``generate``, or None for an inference request.

        The body of an inference request can be read once more.
        """
        metadata = self._dataplane.metadata(model, version)
        body = await exchange.body(self._limits.body_bytes_max)
        if HEADER_LENGTH in exchange.headers or plain_bodies.is_infer_request(body):
            exchange.put_back(body)
            return None
        request = plain_bodies.decode_generate_request(body, metadata)
        return apply_scheduling_parameters(request, self._clock())

    async def _respond_streaming(
        self,
        exchange: Exchange,
        model: str,
        version: str,
        request: InferRequest,
        encode: Callable[[InferResponse], bytes],
    ) -> None:
        """Send events as they are ready.

        An error before the first event is a plain error response. A later error is the last event.
        """
        if exchange.observation is not None:
            exchange.observation.on_request(request)
        batches = self._dataplane.stream_request(model, version, request)
        async with aclosing(batches):
            none: list[InferResponse] = []
            responses: list[InferResponse] = await exchange.while_connected(anext(batches, none))
            self._observe_items(exchange, responses)
            first = sse.encode_event(encode(responses[0])) if responses else b""
            events = self._events(exchange, first, responses[1:], batches, encode)
            async with aclosing(events):
                await exchange.respond_streaming(_EVENT_STREAM, events, _NO_CACHE, on_cancel=_STOPPING)

    async def _events(
        self,
        exchange: Exchange,
        first: bytes,
        responses: list[InferResponse],
        batches: AsyncGenerator[list[InferResponse], None],
        encode: Callable[[InferResponse], bytes],
    ) -> AsyncGenerator[bytes, None]:
        ready: list[bytes] = [first]
        try:
            # Events that were encoded before a failing one are sent before the error.
            ready.extend(sse.encode_event(encode(response)) for response in responses)
            yield b"".join(ready)
            ready = []
            async for batch in batches:
                self._observe_items(exchange, batch)
                ready.extend(sse.encode_event(encode(response)) for response in batch)
                yield b"".join(ready)
                ready = []
        except Exception as error:  # noqa: BLE001 - the status is sent already, so an event reports the error
            status = status_of(error)
            exchange.broken = status.http
            if exchange.observation is not None:
                exchange.observation.on_error(error, status)
            ready.append(sse.encode_event(error_body(status)))
            yield b"".join(ready)

    def _observe_items(self, exchange: Exchange, responses: Sequence[InferResponse]) -> None:
        observation = exchange.observation
        if observation is not None and responses:
            observation.on_items_sent(len(responses), self._clock())
            observation.version = responses[0].model_version or observation.version


def named_model(exchange: Exchange) -> tuple[str, str]:
    """Return the model and the version that the path names; the version may be empty."""
    return exchange.arguments["model_name"], exchange.arguments.get("model_version", "")


def read_request(
    headers: Mapping[bytes, bytes], body: bytes, metadata: ModelMetadata, clock: Callable[[], float]
) -> oip_json.JsonWireRequest:
    """Return the decoded inference request with its deadline and priority.

    Raise the errors of `oip_json.decode_request`.
    """
    length = headers.get(HEADER_LENGTH)
    json_bytes = None if length is None else oip_json.parse_header_length(length.decode("latin-1"))
    if json_bytes == 0:
        return plain_bodies.decode_raw_request(body, metadata)
    wire = oip_json.decode_request(body, json_bytes, bf16="float32")
    if not wire.request.parameters:
        return wire
    return oip_json.JsonWireRequest(
        apply_scheduling_parameters(wire.request, clock()), wire.binary_default, wire.binary_by_name
    )


def read_opaque_request(headers: Mapping[bytes, bytes], body: bytes) -> HandleRequest:
    """Return the request of ``handle``. The model does not see the key of the server.

    Raises DataError and LimitError for an invalid form.
    """
    content_type = headers.get(b"content-type", b"")
    parts = parse_form(content_type, body) if is_form(content_type) else {BODY: body}
    by_name = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers.items() if n != b"authorization"}
    return HandleRequest(parts, by_name)


def encode_response_body(
    response: InferResponse, wire: oip_json.JsonWireRequest, metadata: ModelMetadata
) -> oip_json.WireBody:
    """Return the encoded response in the form that the request selects.

    Raise the errors of `oip_json.encode_response`.
    """
    binary = wire.binary if wire.binary_default or wire.binary_by_name else False
    return oip_json.encode_response(response, binary=binary, datatypes=bf16_outputs(metadata))


def bf16_outputs(metadata: ModelMetadata) -> Mapping[str, str]:
    """Return the outputs that the model declares as BF16. NumPy has no such dtype."""
    for spec in metadata.outputs:
        if spec.datatype == "BF16":
            return {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"}
    return _NONE


def content_headers(body: oip_json.WireBody) -> tuple[bytes, Headers]:
    """Return the content type of a response, and the extra headers of binary tensors."""
    if body.json_bytes is None:
        return JSON, ()
    return _OCTETS, ((HEADER_LENGTH, b"%d" % body.json_bytes),)
