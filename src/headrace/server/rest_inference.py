"""Inference over HTTP: the routes, and the steps that exchanges and the fast path share."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Final

from headrace.core.errors import DataError, LimitError, MissingExtraError
from headrace.core.model import BODY, HandleRequest
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.jobs.access import Scope
from headrace.protocols import oip_json, plain_bodies, sse
from headrace.protocols.oip_documents import encode_error
from headrace.protocols.oip_json import apply_scheduling_parameters
from headrace.server import model_documents as documents
from headrace.server.dataplane import Dataplane, bf16_outputs
from headrace.server.errors import STATUS_DESCRIPTIONS, STOPPING, error_body, status_of
from headrace.server.http import JSON, Exchange, Headers
from headrace.server.listener import RestLimits
from headrace.server.routes import Json, route

try:
    from python_multipart.exceptions import MultipartParseError
    from python_multipart.multipart import MultipartParser, parse_options_header
except ImportError as _error:
    raise MissingExtraError("serve", "multipart forms") from _error

HEADER_LENGTH: Final = oip_json.HEADER_LENGTH.lower().encode()
PARTS_MAX: Final = 1000
"""Limit of the parts of one form."""
_EVENT_STREAM: Final = sse.CONTENT_TYPE.encode()
_NO_CACHE: Final = ((b"cache-control", b"no-cache"),)
_STOPPING: Final = sse.encode_event(encode_error(STOPPING))
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
        response = await self._infer(exchange, model, version, wire.request)
        encoded = encode_response_body(response, wire, metadata)
        await exchange.respond(200, *encoded, gzip_bytes_min=self._limits.gzip_bytes_min)

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
        response = await self._infer(exchange, model, version, request)
        body = plain_bodies.encode_generate_response(response)
        await exchange.respond(200, body, gzip_bytes_min=self._limits.gzip_bytes_min)

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
        body = await exchange.body(self._limits.body_bytes_max)
        return read_request(exchange.headers, body, metadata, self._clock, exchange.client.tenant)

    async def _infer(
        self, exchange: Exchange, model: str, version: str, request: InferRequest
    ) -> InferResponse:
        """Return the response of the model, and observe the request."""
        observation = exchange.observation
        if observation is not None:
            observation.on_request(request)
        times = None if observation is None else observation.times
        response: InferResponse = await exchange.while_connected(
            self._dataplane.infer(model, version, request, times)
        )
        if observation is not None:
            observation.version = response.model_version or version
        return response

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
        return apply_scheduling_parameters(request, self._clock()).within(exchange.client.tenant)

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
    headers: Mapping[bytes, bytes],
    body: bytes,
    metadata: ModelMetadata,
    clock: Callable[[], float],
    namespace: str,
) -> oip_json.JsonWireRequest:
    """Return the decoded inference request with its deadline and priority.

    `namespace` is that of its sequences: the tenant of the client. Raise the errors of
    `oip_json.decode_request`.
    """
    length = headers.get(HEADER_LENGTH)
    json_bytes = None if length is None else oip_json.parse_header_length(length.decode("latin-1"))
    if json_bytes == 0:
        wire = plain_bodies.decode_raw_request(body, metadata)
    else:
        wire = oip_json.decode_request(body, json_bytes, bf16="float32")
    request = wire.request
    if request.parameters:
        request = apply_scheduling_parameters(request, clock())
    request = request.within(namespace)
    return wire if request is wire.request else replace(wire, request=request)


def read_opaque_request(headers: Mapping[bytes, bytes], body: bytes) -> HandleRequest:
    """Return the request of ``handle``. The model does not see the key of the server.

    Raises DataError and LimitError for an invalid form.
    """
    content_type = headers.get(b"content-type", b"")
    is_form = content_type.lower().startswith(b"multipart/form-data")
    parts = parse_form(content_type, body) if is_form else {BODY: body}
    by_name = {n.decode("latin-1"): v.decode("latin-1") for n, v in headers.items() if n != b"authorization"}
    return HandleRequest(parts, by_name)


def encode_response_body(
    response: InferResponse, wire: oip_json.JsonWireRequest, metadata: ModelMetadata
) -> tuple[bytes, bytes, Headers]:
    """Return a response in the form that the request selects, its content type, and further headers.

    Raise the errors of `oip_json.encode_response`.
    """
    binary = wire.binary if wire.binary_default or wire.binary_by_name else False
    encoded = oip_json.encode_response(response, binary=binary, datatypes=bf16_outputs(metadata))
    if encoded.json_bytes is None:
        return encoded.body, JSON, ()
    return encoded.body, _OCTETS, ((HEADER_LENGTH, b"%d" % encoded.json_bytes),)


def parse_form(content_type: bytes, body: bytes) -> dict[str, bytes]:
    """Return the parts of a form by name; of equal names, the last one.

    Raises DataError for a malformed form, and LimitError beyond PARTS_MAX parts.
    """
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        raise DataError("the content type of the form has no boundary")
    form = _Form()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": form.begin,
            "on_header_field": form.add_field,
            "on_header_value": form.add_value,
            "on_header_end": form.end_header,
            "on_part_data": form.add_data,
            "on_part_end": form.end,
            "on_end": form.finish,
        },
    )
    try:
        parser.write(body)
        parser.finalize()
    except MultipartParseError as error:
        raise DataError(f"the form is malformed: {error}") from None
    if not form.is_complete:
        raise DataError("the form ends early")
    return form.parts


class _Form:
    """The parts of a form, from the callbacks of the parser."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}
        self.is_complete = False
        self._field = self._value = b""
        self._disposition = b""
        self._data = bytearray()

    def begin(self) -> None:
        if len(self.parts) >= PARTS_MAX:
            raise LimitError(f"the form has more than {PARTS_MAX} parts")
        self._disposition, self._data = b"", bytearray()

    def add_field(self, data: bytes, start: int, end: int) -> None:
        self._field += data[start:end]

    def add_value(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def end_header(self) -> None:
        if self._field.lower() == b"content-disposition":
            self._disposition = self._value
        self._field = self._value = b""

    def add_data(self, data: bytes, start: int, end: int) -> None:
        self._data += memoryview(data)[start:end]

    def end(self) -> None:
        name = parse_options_header(self._disposition)[1].get(b"name")
        if name is None:
            raise DataError("a part of the form has no name")
        self.parts[name.decode(errors="replace")] = bytes(self._data)

    def finish(self) -> None:
        self.is_complete = True
