"""The Open Inference Protocol over HTTP, as an ASGI application.

Arrives: HTTP requests. Leaves: JSON, binary tensors, or server-sent events; every error is ``{"error": ...}`` with the status
of `server.errors`. Routes are looked up by hand: a framework would cost more than the protocol does.
"""

import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final, NamedTuple

import orjson

from headrace.core.errors import AccessError, UnsupportedError
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata
from headrace.protocols import generate, oip_json, oip_repository, oip_sequences, sse
from headrace.protocols.schedule import scheduled
from headrace.server.answers import Answers
from headrace.server.dataplane import Dataplane
from headrace.server.errors import INTERNAL_ERROR, NOT_FOUND, GrpcCode, Status, status_of
from headrace.server.http import (
    BODY_S_MAX,
    JSON,
    DisconnectedError,
    Exchange,
    Headers,
    Patience,
    Receive,
    Scope,
    Send,
    SlowBodyError,
)
from headrace.server.not_offered import not_offered
from headrace.server.observation import CURRENT, Observation, Observer, Observers
from headrace.server.openapi import docs_page, openapi_document
from headrace.server.rest_direct import ACTION, DirectInference
from headrace.server.rest_inference import (
    HEADER_LENGTH,
    content_headers,
    declared_bf16,
    error_headers,
    read_request,
    told_status,
    written_response,
)
from headrace.server.security import Access, Role

_log = logging.getLogger("headrace.server")

EVENT_STREAM: Final = sse.CONTENT_TYPE.encode()
_SEQUENCES: Final = "/sequences/"
"""Where it stands first in a path the id of a sequence follows: names of models have no slash."""
_HTML: Final = b"text/html; charset=utf-8"
_SLOW_BODY: Final = Status(408, GrpcCode.DEADLINE_EXCEEDED, "the body did not arrive in time")


@dataclass(frozen=True, slots=True)
class RestLimits:
    """Bounds on what is taken and how it is sent."""

    body_bytes_max: int = 64 << 20
    """One request's body, after decompression."""
    body_s_max: float = BODY_S_MAX
    """How long a body may take to arrive."""
    gzip_bytes_min: int | None = 64 << 10
    """Responses from this size on are gzipped for callers who take that; None: never."""


Handler = Callable[[Exchange, str, str], Awaitable[None]]
"""Handles an exchange for a model and a version, both empty where the path has none."""


class _Action(NamedTuple):
    """What is done for one method of one path: its name in metrics and traces, who may, and by what."""

    name: str
    role: Role | None
    handler: Handler


_Methods = dict[str, _Action]


class RestApp:
    """The ASGI application. `clock` tells monotonic seconds, as the engines' clocks do.

    `answers` counts what is answered. Of each request `observers` are told, traces and the access log; then every request has
    an id, which is in its response and in log records. None: nothing is observed, which costs nothing, and only errors have ids.
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
        self.answers = Answers("rest")
        self._observers = None if observers is None else Observers(observers)
        self._dataplane = dataplane
        self._access = access or Access()
        self._limits = limits or RestLimits()
        self._patience = Patience(self._limits.body_s_max)
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
        # Where requests are observed every one of them is an exchange.
        self.direct = None if self._observers is not None else self._make_direct()
        """What answers hot requests without an exchange; to be handed to the listener."""
        refuse = _Action("not_offered", None, self._refuse)
        self._refused: _Methods = {"GET": refuse, "POST": refuse}

    def _make_direct(self) -> DirectInference:
        def find(path: str) -> tuple[str, str] | None:
            methods, model, version = self._route(path)
            return (model, version) if methods is self._of_model[ACTION] else None

        return DirectInference(
            self._dataplane,
            self.answers,
            self._access,
            body_bytes_max=self._limits.body_bytes_max,
            gzip_bytes_min=self._limits.gzip_bytes_min,
            find=find,
            clock=self._clock,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one exchange; see the ASGI specification."""
        if scope["type"] != "http":
            return
        exchange = Exchange(scope, receive, send, self._patience)
        try:
            if self._observers is None:
                await self._serve(exchange)
            else:
                await self._serve_observed(exchange, self._observers)
        finally:
            self.answers.add(exchange.action, exchange.status)

    async def _serve_observed(self, exchange: Exchange, observers: Observers) -> None:
        exchange.observation = seen = self._observation(exchange)
        exchange.request_id = seen.request_id.encode()
        token = CURRENT.set(seen)
        observers.begin(seen)
        try:
            await self._serve(exchange)
        finally:
            seen.status, seen.ended_s = exchange.status, self._clock()
            observers.end(seen)
            CURRENT.reset(token)

    def _observation(self, exchange: Exchange) -> Observation:
        return Observation(
            "rest",
            exchange.method,
            exchange.path,
            began_s=self._clock(),
            header=lambda name: exchange.header(name.encode("latin-1")),
        )

    async def _serve(self, exchange: Exchange) -> None:
        try:
            methods, model, version = self._route(exchange.path)
            # The server sends no body after HEAD.
            action = methods.get("GET" if exchange.method == "HEAD" else exchange.method)
            if action is None:
                await self._other_method(exchange, methods)
                return
            exchange.action = action.name
            seen = exchange.observation
            if seen is not None:
                seen.action, seen.model, seen.version = action.name, model, version
            if action.role is not None and not self._access.open:
                client = self._access.check(exchange.header(b"authorization"), action.role)
                if seen is not None:
                    seen.client = client
            await action.handler(exchange, model, version)
        except DisconnectedError:
            return
        except SlowBodyError:
            await self._tell(exchange, _SLOW_BODY, ((b"connection", b"close"),))
        except Exception as error:  # noqa: BLE001 - every error becomes an answer
            await self._fail(exchange, error)

    # Routes

    def _route(self, path: str) -> tuple[_Methods, str, str]:
        """What can be done at a path: by method, with the model and the version that it names."""
        if path[-1:] == "/" and len(path) > 1:
            path = path[:-1]
        fixed = self._fixed.get(path)
        if fixed is not None:
            return fixed, "", ""
        version, action = "", ""
        match path.split("/"):
            # An id may have slashes.
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
                return (self._refused if not_offered(path) else {}), "", ""
        return (routes.get(action, {}) if name else {}), name, version

    async def _other_method(self, exchange: Exchange, methods: _Methods) -> None:
        if not methods:
            await self._tell(
                exchange, Status(NOT_FOUND, GrpcCode.NOT_FOUND, f"there is nothing at {exchange.path[:200]}")
            )
            return
        allowed = ", ".join(sorted({*methods, *(("HEAD",) if "GET" in methods else ())}))
        why = f"{exchange.method[:20]} is not for {exchange.path[:200]}: use {allowed}"
        status = Status(405, GrpcCode.UNIMPLEMENTED, why)
        await self._tell(exchange, status, ((b"allow", allowed.encode()),))

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

    async def _refuse(self, exchange: Exchange, _model: str, _version: str) -> None:
        raise UnsupportedError(not_offered(exchange.path))

    async def _statistics(self, exchange: Exchange, model: str, version: str) -> None:
        body = oip_repository.encode_statistics(self._dataplane.statistics(model, version))
        await exchange.respond(200, body)

    async def _openapi(self, exchange: Exchange, _model: str, _version: str) -> None:
        document = openapi_document(self._dataplane.version, self._shown(exchange))
        await exchange.respond(200, orjson.dumps(document))

    async def _docs(self, exchange: Exchange, _model: str, _version: str) -> None:
        page = docs_page(self._dataplane.version, self._shown(exchange))
        policy = b"default-src 'none'; style-src 'unsafe-inline'"
        await exchange.respond(200, page.encode(), _HTML, ((b"content-security-policy", policy),))

    def _shown(self, exchange: Exchange) -> list[ModelMetadata]:
        """The models that whoever asks may know of: documents are there for all, models for those who may ask them."""
        if not self._access.open:
            try:
                self._access.check(exchange.header(b"authorization"), Role.INFER)
            except AccessError:
                return []
        return self._dataplane.described()

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
        most = oip_sequences.decode_limit(exchange.query)
        listing = self._dataplane.sequences(model, version, most=most)
        await exchange.respond(200, oip_sequences.encode_listing(listing))

    async def _cancel_sequence(self, exchange: Exchange, model: str, version: str) -> None:
        id = exchange.path.partition(_SEQUENCES)[2]
        if self._dataplane.cancel_sequence(model, version, id):
            await exchange.respond_nothing()
            return
        why = f"model {model}: there is no sequence {id[:200]!r}"
        await self._tell(exchange, Status(NOT_FOUND, GrpcCode.NOT_FOUND, why))

    # Inference

    async def _body(self, exchange: Exchange) -> bytes:
        return await exchange.body(self._limits.body_bytes_max)

    async def _request(self, exchange: Exchange, metadata: ModelMetadata) -> oip_json.WireRequest:
        """An inference request as it came, with its deadline and priority."""
        if HEADER_LENGTH in exchange.headers:
            # Before the body, which may be large: a header that is wrong is told at once.
            oip_json.header_length(exchange.header(HEADER_LENGTH))
        return read_request(exchange.headers, await self._body(exchange), metadata, self._clock)

    async def _infer(self, exchange: Exchange, model: str, version: str) -> None:
        # First, so that an unknown model is told as such whatever the body.
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        response = await self._answer(exchange, model, version, wire.request)
        await self._respond(exchange, written_response(response, wire, metadata))

    async def _answer(
        self, exchange: Exchange, model: str, version: str, request: InferRequest
    ) -> InferResponse:
        seen = exchange.observation
        if seen is None:
            return await exchange.while_connected(self._dataplane.infer(model, version, request))
        seen.asked(request)
        response: InferResponse = await exchange.while_connected(
            self._dataplane.infer(model, version, request, seen.times)
        )
        seen.version = response.model_version or version
        return response

    async def _respond(self, exchange: Exchange, body: oip_json.WireBody) -> None:
        content_type, extra = content_headers(body)
        await exchange.respond_compressed(200, body.body, content_type, self._limits.gzip_bytes_min, extra)

    async def _infer_stream(self, exchange: Exchange, model: str, version: str) -> None:
        metadata = self._dataplane.metadata(model, version)
        wire = await self._request(exchange, metadata)
        datatypes = declared_bf16(metadata)

        def encoded(response: InferResponse) -> bytes:
            return oip_json.encode_response(response, datatypes=datatypes).body

        await self._respond_streaming(exchange, model, version, wire.request, encoded)

    async def _generate(self, exchange: Exchange, model: str, version: str) -> None:
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self._infer(exchange, model, version)
            return
        response = await self._answer(exchange, model, version, request)
        await self._respond(exchange, oip_json.WireBody(generate.encode_generated(response)))

    async def _generate_stream(self, exchange: Exchange, model: str, version: str) -> None:
        request = await self._generate_request(exchange, model, version)
        if request is None:
            await self._infer_stream(exchange, model, version)
            return
        await self._respond_streaming(exchange, model, version, request, generate.encode_generated)

    async def _generate_request(self, exchange: Exchange, model: str, version: str) -> InferRequest | None:
        """The request of ``generate``; None for an inference request, whose body is there to be read once more."""
        metadata = self._dataplane.metadata(model, version)
        body = await self._body(exchange)
        if HEADER_LENGTH in exchange.headers or generate.is_inference(body):
            exchange.unread(body)
            return None
        request = generate.decode_generate(body, metadata)
        return scheduled(request, self._clock())

    async def _respond_streaming(
        self,
        exchange: Exchange,
        model: str,
        version: str,
        request: InferRequest,
        encoded: Callable[[InferResponse], bytes],
    ) -> None:
        """Events as they come. What fails before the first is a plain error; later, an error event is the last."""
        if exchange.observation is not None:
            exchange.observation.asked(request)
        some = self._dataplane.stream_one(model, version, request)
        async with aclosing(some):
            none: list[InferResponse] = []
            responses: list[InferResponse] = await exchange.while_connected(anext(some, none))
            self._see_items(exchange, responses)
            first = sse.encode_event(encoded(responses[0])) if responses else b""
            events = self._events(exchange, first, responses[1:], some, encoded)
            async with aclosing(events):
                await exchange.respond_streaming(EVENT_STREAM, events)

    async def _events(
        self,
        exchange: Exchange,
        first: bytes,
        responses: list[InferResponse],
        some: AsyncGenerator[list[InferResponse], None],
        encoded: Callable[[InferResponse], bytes],
    ) -> AsyncGenerator[bytes, None]:
        ready: list[bytes] = [first]
        try:
            # What was encoded before one that cannot be goes out before the error.
            ready.extend(sse.encode_event(encoded(response)) for response in responses)
            yield b"".join(ready)
            ready = []
            async for later in some:
                self._see_items(exchange, later)
                ready.extend(sse.encode_event(encoded(response)) for response in later)
                yield b"".join(ready)
                ready = []
        except Exception as error:  # noqa: BLE001 - the status is sent: an event must say it
            status = status_of(error)
            self.answers.broke(exchange.action, status.http)
            if exchange.observation is not None:
                exchange.observation.failed(error, status)
            ready.append(sse.encode_event(oip_json.encode_error(status.why, status.kind)))
            yield b"".join(ready)

    def _see_items(self, exchange: Exchange, responses: Sequence[InferResponse] | None) -> None:
        seen = exchange.observation
        if seen is not None and responses:
            seen.sent(len(responses), self._clock())
            seen.version = responses[0].model_version or seen.version

    # Errors

    async def _fail(self, exchange: Exchange, error: Exception) -> None:
        if exchange.started:
            # Nothing can be said any more; a cut connection is the one sign that is left.
            _log.error("a response failed after it was begun", exc_info=error)
            self.answers.broke(exchange.action, INTERNAL_ERROR)
            raise error
        status = self._status_of(exchange, error)
        await self._tell(exchange, status, error_headers(status))

    def _status_of(self, exchange: Exchange, error: Exception) -> Status:
        seen = exchange.observation or self._observation(exchange)
        # Also where nothing is observed: what is logged of it has the id that the answer has.
        exchange.request_id = seen.request_id.encode()
        return told_status(error, seen)

    async def _tell(self, exchange: Exchange, status: Status, extra: Headers = ()) -> None:
        await exchange.respond(status.http, oip_json.encode_error(status.why, status.kind), JSON, extra)
