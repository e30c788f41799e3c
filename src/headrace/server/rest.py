"""The Open Inference Protocol over HTTP, as an ASGI application.

Responses are JSON, binary tensors or server-sent events. Every error is ``{"error": ...}`` with the
status of `headrace.server.errors`. The routes are looked up by hand, because a web framework would
cost more than the protocol.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Final, NamedTuple

import orjson

from headrace.core.errors import AccessError, UnsupportedError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols import generate, oip_json, oip_repository, oip_sequences, sse
from headrace.protocols.scheduling_parameters import apply_scheduling_parameters
from headrace.server.dataplane import Dataplane
from headrace.server.errors import INTERNAL_ERROR, NOT_FOUND, STOPPING, ErrorStatus, GrpcCode, status_of
from headrace.server.http import (
    JSON,
    AsgiReceive,
    AsgiScope,
    AsgiSend,
    DisconnectedError,
    Exchange,
    Headers,
    HttpTimeouts,
    SlowBodyError,
)
from headrace.server.observation import CURRENT, Observer, Observers, RequestObservation
from headrace.server.openapi import docs_page, openapi_document
from headrace.server.response_counters import ResponseCounters
from headrace.server.rest_direct import ACTION, DirectInference
from headrace.server.rest_inference import (
    HEADER_LENGTH,
    bf16_outputs,
    content_headers,
    encode_response_body,
    error_headers,
    observed_error_status,
    read_opaque_request,
    read_request,
)
from headrace.server.security import Access, Role
from headrace.server.settings import RestLimits
from headrace.server.unsupported_routes import unsupported_reason

_log = logging.getLogger("headrace.server")

EVENT_STREAM: Final = sse.CONTENT_TYPE.encode()
_SEQUENCES: Final = "/sequences/"
"""The path segment before a sequence id. Its first occurrence counts, because model names have no slash."""
_HTML: Final = b"text/html; charset=utf-8"
_NO_CACHE: Final = ((b"cache-control", b"no-cache"),)
_STOPPING: Final = sse.encode_event(oip_json.encode_error(STOPPING))
_SLOW_BODY: Final = ErrorStatus(408, GrpcCode.DEADLINE_EXCEEDED, "the body did not arrive in time")


Handler = Callable[[Exchange, str, str], Awaitable[None]]
"""A handler of an exchange for a model and a version; both are empty if the path has none."""


class _Action(NamedTuple):
    """The handler of one method of one path, its name in metrics and traces, and the required role."""

    name: str
    role: Role | None
    handler: Handler


_Methods = dict[str, _Action]


class RestApp:
    """The ASGI application of the inference protocol.

    `clock` returns monotonic seconds, as in engines. `response_counters` count the responses.
    `observers` see every request: traces and the access log. Every request then has an id, in its
    response and in log records. With None, nothing is observed and only errors have ids.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        access: Access | None = None,
        limits: RestLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] | None = None,
    ) -> None:
        self.response_counters = ResponseCounters("rest")
        self._observers = None if observers is None else Observers(observers)
        self._dataplane = dataplane
        self._access = access or Access()
        self._limits = limits or RestLimits()
        self._timeouts = HttpTimeouts(self._limits.body_s_max)
        self._clock = clock
        self._fixed: dict[str, _Methods] = {
            "/": {"GET": _Action("server_metadata", None, self._server_metadata)},
            "/v2": {"GET": _Action("server_metadata", Role.INFER, self._server_metadata)},
            "/v2/health/live": {"GET": _Action("live", None, self._live)},
            "/v2/health/ready": {"GET": _Action("ready", None, self._ready)},
            "/v2/models": {"GET": _Action("models", Role.INFER, self._models)},
            "/v2/models/stats": {"GET": _Action("statistics", Role.INFER, self._statistics)},
            "/v2/repository/index": {"POST": _Action("index", Role.ADMIN, self._index)},
            "/v2/docs": {"GET": _Action("docs", None, self._docs)},
            "/v2/docs/dataplane.json": {"GET": _Action("openapi", None, self._openapi)},
            "/docs": {"GET": _Action("docs", None, self._docs)},
            "/openapi.json": {"GET": _Action("openapi", None, self._openapi)},
        }
        self._of_model: dict[str, _Methods] = {
            "": {"GET": _Action("model_metadata", Role.INFER, self._model_metadata)},
            "ready": {"GET": _Action("model_ready", None, self._model_ready)},
            ACTION: {"POST": _Action(ACTION, Role.INFER, self._infer)},
            "infer_stream": {"POST": _Action("infer_stream", Role.INFER, self._infer_stream)},
            "handle": {"POST": _Action("handle", Role.INFER, self._handle)},
            "generate": {"POST": _Action("generate", Role.INFER, self._generate)},
            "generate_stream": {"POST": _Action("generate_stream", Role.INFER, self._generate_stream)},
            "stats": {"GET": _Action("statistics", Role.INFER, self._statistics)},
            "config": {"GET": _Action("model_config", Role.INFER, self._model_config)},
            "sequences": {"GET": _Action("sequences", Role.ADMIN, self._sequences)},
        }
        self._of_sequence: _Methods = {
            "DELETE": _Action("cancel_sequence", Role.ADMIN, self._cancel_sequence)
        }
        self._of_repository: dict[str, _Methods] = {
            "load": {"POST": _Action("load", Role.ADMIN, self._load)},
            "unload": {"POST": _Action("unload", Role.ADMIN, self._unload)},
        }
        # With observers, every request is an ASGI exchange.
        self.direct = None if self._observers is not None else self._make_direct()
        """The handler of requests without an ASGI exchange, for the listener; None with observers."""
        unsupported = _Action("not_offered", None, self._respond_unsupported)
        self._unsupported: _Methods = {"GET": unsupported, "POST": unsupported}

    def _make_direct(self) -> DirectInference:
        def find(path: str) -> tuple[str, str] | None:
            methods, model, version = self._route(path)
            return (model, version) if methods is self._of_model[ACTION] else None

        return DirectInference(
            self._dataplane,
            self.response_counters,
            self._access,
            body_bytes_max=self._limits.body_bytes_max,
            gzip_bytes_min=self._limits.gzip_bytes_min,
            find=find,
            clock=self._clock,
        )

    async def __call__(self, scope: AsgiScope, receive: AsgiReceive, send: AsgiSend) -> None:
        """Handle one ASGI connection."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._timeouts)
        try:
            if self._observers is None:
                await self._serve(exchange)
            else:
                await self._serve_observed(exchange, self._observers)
        finally:
            self.response_counters.add(exchange.action, exchange.status)

    async def _serve_observed(self, exchange: Exchange, observers: Observers) -> None:
        exchange.observation = observation = self._observation(exchange)
        exchange.request_id = observation.request_id.encode()
        token = CURRENT.set(observation)
        observers.begin(observation)
        try:
            await self._serve(exchange)
        finally:
            observation.status, observation.ended_s = exchange.status, self._clock()
            observers.end(observation)
            CURRENT.reset(token)

    def _observation(self, exchange: Exchange) -> RequestObservation:
        return RequestObservation(
            "rest",
            exchange.method,
            exchange.path,
            began_s=self._clock(),
            header=lambda name: exchange.header(name.encode("latin-1")),
        )

    async def _serve(self, exchange: Exchange) -> None:
        try:
            methods, model, version = self._route(exchange.path)
            # The server sends no body in response to HEAD.
            action = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
            if action is None:
                await self._reject_method(exchange, methods)
                return
            exchange.action = action.name
            observation = exchange.observation
            if observation is not None:
                observation.action, observation.model, observation.version = action.name, model, version
            if action.role is not None and not self._access.open:
                client = self._access.check(exchange.header(b"authorization"), action.role)
                if observation is not None:
                    observation.client = client
            await action.handler(exchange, model, version)
        except DisconnectedError:
            return
        except SlowBodyError:
            await self._respond_error(exchange, _SLOW_BODY, ((b"connection", b"close"),))
        except Exception as error:  # noqa: BLE001 - every error becomes a response
            await self._handle_error(exchange, error)

    # Routes

    def _route(self, path: str) -> tuple[_Methods, str, str]:
        """Return the handlers of a path by method, with the model and version that the path names."""
        if path[-1:] == "/" and len(path) > 1:
            path = path[:-1]
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, "", ""
        version, action = "", ""
        match path.split("/"):
            # A sequence id may contain slashes.
            case ["", "v2", "models", name, "sequences", _, *_] if name:
                return self._of_sequence, name, ""
            case ["", "v2", "models", name, "versions", version, "sequences", _, *_] if name and version:
                return self._of_sequence, name, version
            case ["", "v2", "models", name]:
                routes = self._of_model
            case ["", "v2", "models", name, "versions", version] if version:
                routes = self._of_model
            case ["", "v2", "models", name, "versions", version, action] if version and action:
                routes = self._of_model
            case ["", "v2", "models", name, action] if action:
                routes = self._of_model
            case ["", "v2", "repository", "models", name, action]:
                routes = self._of_repository
            case _:
                return (self._unsupported if unsupported_reason(path) else {}), "", ""
        return (routes.get(action, {}) if name else {}), name, version

    async def _reject_method(self, exchange: Exchange, methods: _Methods) -> None:
        if not methods:
            await self._respond_error(
                exchange,
                ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, f"no resource at {exchange.path[:200]}"),
            )
            return
        allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
        why = f"{exchange.method[:20]} is not supported for {exchange.path[:200]}: use {allowed}"
        status = ErrorStatus(405, GrpcCode.UNIMPLEMENTED, why)
        await self._respond_error(exchange, status, ((b"allow", allowed.encode()),))

    # Health and metadata

    async def _live(self, exchange: Exchange, _model: str, _version: str) -> None:
        await exchange.respond(200, b'{"live":true}')

    async def _ready(self, exchange: Exchange, _model: str, _version: str) -> None:
        ready = self._dataplane.ready()
        await exchange.respond(200 if ready else 503, b'{"ready":true}' if ready else b'{"ready":false}')

    async def _server_metadata(self, exchange: Exchange, _model: str, _version: str) -> None:
        plane = self._dataplane
        body = oip_repository.encode_server_metadata(plane.name, plane.version, plane.extensions)
        await exchange.respond(200, body)

    async def _models(self, exchange: Exchange, _model: str, _version: str) -> None:
        names = sorted({entry.name for entry in self._dataplane.index(ready=True)})
        await exchange.respond(200, orjson.dumps({"models": names}))

    async def _model_metadata(self, exchange: Exchange, model: str, version: str) -> None:
        metadata = self._dataplane.metadata(model, version)
        body = oip_repository.encode_model_metadata(metadata, self._dataplane.versions(model))
        await exchange.respond(200, body)

    async def _model_ready(self, exchange: Exchange, model: str, version: str) -> None:
        ready = self._dataplane.model_ready(model, version)
        await exchange.respond(200 if ready else 503, orjson.dumps({"name": model, "ready": ready}))

    async def _model_config(self, exchange: Exchange, model: str, version: str) -> None:
        body = oip_repository.encode_model_config(self._dataplane.metadata(model, version))
        await exchange.respond(200, body)

    async def _respond_unsupported(self, exchange: Exchange, _model: str, _version: str) -> None:
        raise UnsupportedError(unsupported_reason(exchange.path))

    async def _statistics(self, exchange: Exchange, model: str, version: str) -> None:
        body = oip_repository.encode_statistics(self._dataplane.statistics(model, version))
        await exchange.respond(200, body)

    async def _openapi(self, exchange: Exchange, _model: str, _version: str) -> None:
        document = openapi_document(self._dataplane.version, self._visible_models(exchange))
        await exchange.respond(200, orjson.dumps(document))

    async def _docs(self, exchange: Exchange, _model: str, _version: str) -> None:
        page = docs_page(self._dataplane.version, self._visible_models(exchange), exchange.origin)
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        await exchange.respond(200, page.encode(), _HTML, ((b"content-security-policy", policy),))

    def _visible_models(self, exchange: Exchange) -> list[ModelMetadata]:
        """Return the models that the client may know, for the API documentation.

        Every client may read the documentation. Only clients that may call models see them in it.
        """
        if not self._access.open:
            try:
                self._access.check(exchange.header(b"authorization"), Role.INFER)
            except AccessError:
                return []
        return self._dataplane.ready_metadata()

    # The model repository

    async def _index(self, exchange: Exchange, _model: str, _version: str) -> None:
        ready = oip_repository.decode_index_request(await self._body(exchange))
        await exchange.respond(200, oip_repository.encode_index(self._dataplane.index(ready=ready)))

    async def _load(self, exchange: Exchange, model: str, _version: str) -> None:
        parameters = oip_repository.decode_load_request(await self._body(exchange))
        await self._dataplane.load(model, parameters)
        await exchange.respond(200, orjson.dumps({"name": model, "load": True}))

    async def _unload(self, exchange: Exchange, model: str, _version: str) -> None:
        oip_repository.decode_load_request(await self._body(exchange))
        await self._dataplane.unload(model)
        await exchange.respond(200, orjson.dumps({"name": model, "unload": True}))

    # Sequences

    async def _sequences(self, exchange: Exchange, model: str, version: str) -> None:
        limit = oip_sequences.decode_limit(exchange.query)
        listing = self._dataplane.sequences(model, version, limit=limit)
        await exchange.respond(200, oip_sequences.encode_listing(listing))

    async def _cancel_sequence(self, exchange: Exchange, model: str, version: str) -> None:
        id = exchange.path.partition(_SEQUENCES)[2]
        if self._dataplane.cancel_sequence(model, version, id):
            await exchange.respond_no_content()
            return
        why = f"model {model}: no sequence has the id {id[:200]!r}"
        await self._respond_error(exchange, ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, why))

    # Inference

    async def _body(self, exchange: Exchange) -> bytes:
        return await exchange.body(self._limits.body_bytes_max)

    async def _request(self, exchange: Exchange, metadata: ModelMetadata) -> oip_json.JsonWireRequest:
        """Return the decoded inference request, with its deadline and priority."""
        if HEADER_LENGTH in exchange.headers:
            # The header is checked before the body is read, because the body may be large.
            oip_json.parse_header_length(exchange.header(HEADER_LENGTH))
        return read_request(exchange.headers, await self._body(exchange), metadata, self._clock)

    async def _infer(self, exchange: Exchange, model: str, version: str) -> None:
        # The lookup comes first, so that an unknown model is reported whatever the body is.
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        response = await self._infer_observed(exchange, model, version, wire.request)
        await self._respond(exchange, encode_response_body(response, wire, metadata))

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

    async def _infer_stream(self, exchange: Exchange, model: str, version: str) -> None:
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        datatypes = bf16_outputs(metadata)

        def encode(response: InferResponse) -> bytes:
            return oip_json.encode_response(response, datatypes=datatypes).body

        await self._respond_streaming(exchange, model, version, wire.request, encode)

    async def _handle(self, exchange: Exchange, model: str, version: str) -> None:
        self._dataplane.metadata(model, version)
        request = read_opaque_request(exchange.headers, await self._body(exchange))
        response, chunks = await exchange.while_connected(self._dataplane.handle(model, version, request))
        content_type = response.content_type.encode("latin-1")
        extra = [(name.encode(), value.encode("latin-1")) for name, value in response.headers.items()]
        if chunks is None:
            await exchange.respond(response.status, response.body, content_type, extra)
            return
        async with aclosing(chunks):
            await exchange.respond_streaming(content_type, chunks, extra, status=response.status)

    async def _generate(self, exchange: Exchange, model: str, version: str) -> None:
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self._infer(exchange, model, version)
            return
        response = await self._infer_observed(exchange, model, version, request)
        await self._respond(exchange, oip_json.WireBody(generate.encode_generate_response(response)))

    async def _generate_stream(self, exchange: Exchange, model: str, version: str) -> None:
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self._infer_stream(exchange, model, version)
            return
        await self._respond_streaming(exchange, model, version, request, generate.encode_generate_response)

    async def _generate_request(self, exchange: Exchange, model: str, version: str) -> InferRequest | None:
        """Return the request of ``generate``, or None for an inference request.

        The body of an inference request can be read once more.
        """
        metadata = self._dataplane.metadata(model, version)
        body = await self._body(exchange)
        if HEADER_LENGTH in exchange.headers or generate.is_infer_request(body):
            exchange.put_back(body)
            return None
        request = generate.decode_generate_request(body, metadata)
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
                await exchange.respond_streaming(EVENT_STREAM, events, _NO_CACHE, on_cancel=_STOPPING)

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
            self.response_counters.add_broken(exchange.action, status.http)
            if exchange.observation is not None:
                exchange.observation.on_error(error, status)
            ready.append(sse.encode_event(oip_json.encode_error(status.why, status.kind)))
            yield b"".join(ready)

    def _observe_items(self, exchange: Exchange, responses: Sequence[InferResponse] | None) -> None:
        observation = exchange.observation
        if observation is not None and responses:
            observation.on_items_sent(len(responses), self._clock())
            observation.version = responses[0].model_version or observation.version

    # Errors

    async def _handle_error(self, exchange: Exchange, error: Exception) -> None:
        if exchange.started:
            # The status is sent already. Only a closed connection can signal the failure.
            _log.error("a response failed after its start", exc_info=error)
            self.response_counters.add_broken(exchange.action, INTERNAL_ERROR)
            raise error
        status = self._status_of(exchange, error)
        await self._respond_error(exchange, status, error_headers(status))

    def _status_of(self, exchange: Exchange, error: Exception) -> ErrorStatus:
        observation = exchange.observation or self._observation(exchange)
        # The id in the log record is also the id in the response, even if nothing is observed.
        exchange.request_id = observation.request_id.encode()
        return observed_error_status(error, observation)

    async def _respond_error(self, exchange: Exchange, status: ErrorStatus, extra: Headers = ()) -> None:
        await exchange.respond(status.http, oip_json.encode_error(status.why, status.kind), JSON, extra)
