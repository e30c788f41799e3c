"""The Open Inference Protocol over HTTP: the routes of models.

Responses are JSON, binary tensors or server-sent events.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

import orjson

from headrace.core.errors import UnsupportedError
from headrace.jobs.access import ApiKey, Scope
from headrace.protocols import oip_repository, oip_sequences
from headrace.protocols.oip_json import HEADER_LENGTH
from headrace.server import model_documents as documents
from headrace.server.application import WebApp
from headrace.server.dataplane import Dataplane
from headrace.server.errors import NOT_FOUND, STATUS_DESCRIPTIONS, ErrorStatus, GrpcCode, StatusError
from headrace.server.guard import Guard
from headrace.server.http import Exchange
from headrace.server.observation import Observer
from headrace.server.openapi import documentation_routes
from headrace.server.rest_direct import ACTION, DirectInference
from headrace.server.rest_inference import InferenceHandlers, RestLimits, named_model
from headrace.server.routes import Handler, Json, Operation, Route, read_query

_INFER: Final = (Scope.INFER,)
_MODELS: Final = (Scope.MODELS,)
_MODEL: Final = "/v2/models/{model_name}"
_VERSION: Final = "/v2/models/{model_name}/versions/{model_version}"
_METADATA_ERRORS: Final = (404, 503)
_CHANGE_ERRORS: Final = (400, 404, 408, 413, 501, 503)
_INFER_ERRORS: Final = tuple(STATUS_DESCRIPTIONS)

_HEADER_LENGTH: Final[Json] = {
    "name": HEADER_LENGTH,
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

_SHARED_MEMORY: Final = "shared memory is not offered: send the tensors in the request, as binary data"
_TRACE: Final = "trace settings cannot be changed over the network"
_LOGGING: Final = "log settings cannot be changed over the network"
_UNSUPPORTED: Final = {
    **{
        f"/v2/{kind}sharedmemory{region}/{verb}": _SHARED_MEMORY
        for kind in ("system", "cuda")
        for region in ("", "/region/{region}")
        for verb in ("status", "register", "unregister")
    },
    "/v2/trace/setting": _TRACE,
    "/v2/models/{model_name}/trace/setting": _TRACE,
    "/v2/logging": _LOGGING,
}
"""Triton's extensions that headrace lacks. Requests get a reason instead of 404."""


class ModelHandlers:
    """The handlers of routes about models: health, metadata, the repository and sequences."""

    def __init__(self, dataplane: Dataplane, limits: RestLimits) -> None:
        self._dataplane = dataplane
        self._limits = limits

    # Health and metadata

    async def live(self, exchange: Exchange) -> None:
        """Report that the process responds."""
        await exchange.respond(200, b'{"live":true}')

    async def ready(self, exchange: Exchange) -> None:
        """Report the readiness of the server."""
        ready = self._dataplane.ready()
        await exchange.respond(200 if ready else 503, b'{"ready":true}' if ready else b'{"ready":false}')

    async def server_metadata(self, exchange: Exchange) -> None:
        """Report the server and its extensions."""
        plane = self._dataplane
        body = oip_repository.encode_server_metadata(plane.name, plane.version, plane.extensions)
        await exchange.respond(200, body)

    async def models(self, exchange: Exchange) -> None:
        """List the ready models that the client's key permits."""
        permits = _key(exchange).permits_model
        names = sorted({e.name for e in self._dataplane.index(ready=True) if permits(e.name)})
        await exchange.respond(200, orjson.dumps({"models": names}))

    async def model_metadata(self, exchange: Exchange) -> None:
        """Report a model with its inputs and outputs."""
        model, version = named_model(exchange)
        metadata = self._dataplane.metadata(model, version)
        body = oip_repository.encode_model_metadata(metadata, self._dataplane.versions(model))
        await exchange.respond(200, body)

    async def model_ready(self, exchange: Exchange) -> None:
        """Report the readiness of a model."""
        model, version = named_model(exchange)
        ready = self._dataplane.model_ready(model, version)
        await exchange.respond(200 if ready else 503, orjson.dumps({"name": model, "ready": ready}))

    async def model_config(self, exchange: Exchange) -> None:
        """Report the configuration of a model in Triton's format."""
        body = oip_repository.encode_model_config(self._dataplane.metadata(*named_model(exchange)))
        await exchange.respond(200, body)

    async def statistics(self, exchange: Exchange) -> None:
        """Report the statistics of one model, or of all that the client's key permits."""
        named = exchange.arguments
        found = self._dataplane.statistics(named.get("model_name", ""), named.get("model_version", ""))
        permits = _key(exchange).permits_model
        await exchange.respond(200, oip_repository.encode_statistics([s for s in found if permits(s.name)]))

    # The model repository

    async def index(self, exchange: Exchange) -> None:
        """List every version of every model."""
        ready = oip_repository.decode_index_request(await exchange.body(self._limits.body_bytes_max))
        await exchange.respond(200, oip_repository.encode_index(self._dataplane.index(ready=ready)))

    async def load(self, exchange: Exchange) -> None:
        """Load a model, or reload it."""
        model = exchange.arguments["model_name"]
        parameters = oip_repository.decode_load_request(await exchange.body(self._limits.body_bytes_max))
        await self._dataplane.load(model, parameters)
        await exchange.respond(200, orjson.dumps({"name": model, "load": True}))

    async def unload(self, exchange: Exchange) -> None:
        """Unload a model."""
        model = exchange.arguments["model_name"]
        oip_repository.decode_load_request(await exchange.body(self._limits.body_bytes_max))
        await self._dataplane.unload(model)
        await exchange.respond(200, orjson.dumps({"name": model, "unload": True}))

    # Sequences

    async def sequences(self, exchange: Exchange) -> None:
        """List live sequences of a model."""
        limit = read_query(documents.SequencesQuery, exchange.query).limit
        listing = self._dataplane.sequences(*named_model(exchange), limit=limit)
        await exchange.respond(200, oip_sequences.encode_listing(listing))

    async def cancel_sequence(self, exchange: Exchange) -> None:
        """End a sequence with its waiting requests."""
        model, version = named_model(exchange)
        id = exchange.arguments["sequence_id"]
        if not self._dataplane.cancel_sequence(model, version, id):
            why = f"model {model}: no sequence has the id {id[:200]!r}"
            raise StatusError(ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, why))
        await exchange.respond_no_content()


def _key(exchange: Exchange) -> ApiKey:
    assert exchange.key is not None, "the route has no scope"
    return exchange.key


def model_routes(
    dataplane: Dataplane,
    limits: RestLimits | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Route]:
    """Return the routes of the models of a dataplane."""
    limits = limits or RestLimits()
    of_models = ModelHandlers(dataplane, limits)
    inference = InferenceHandlers(dataplane, limits, clock)
    routes = [*_server_routes(of_models), *_repository_routes(of_models)]
    for route in (*_routes_of_model(of_models), *_inference_routes(inference)):
        routes += (route, replace(route, path=route.path.replace(_MODEL, _VERSION)))
    for path, why in _UNSUPPORTED.items():
        routes += (Route(method, path, "not_offered", (), _refusal(why)) for method in ("GET", "POST"))
    return [replace(route, is_lenient=True) for route in routes]


def model_app(
    dataplane: Dataplane,
    *,
    guard: Guard | None = None,
    limits: RestLimits | None = None,
    clock: Callable[[], float] = time.monotonic,
    observers: Sequence[Observer] | None = None,
    job_routes: Sequence[Route] = (),
) -> WebApp:
    """Return the application of a model server, with the fast path of ``infer``.

    With observers, every request is an ASGI exchange and there is no fast path. `job_routes` are served
    besides the models.
    """
    guard, limits = guard or Guard(), limits or RestLimits()
    described = [*model_routes(dataplane, limits, clock=clock), *job_routes]
    documentation = documentation_routes(
        described, guard, version=dataplane.version, ready_models=dataplane.ready_metadata
    )
    routes = [*described, *documentation]
    app = WebApp(routes, guard, body_s_max=limits.body_s_max, clock=clock, observers=observers)
    if observers is None:
        app.direct = DirectInference(
            dataplane,
            app.response_counters,
            guard,
            body_bytes_max=limits.body_bytes_max,
            gzip_bytes_min=limits.gzip_bytes_min,
            find=lambda path: _find_inference(app, path),
            clock=clock,
        )
    return app


RestApp = model_app  # the earlier name, for one release


def _find_inference(app: WebApp, path: str) -> tuple[str, str] | None:
    """Return the model and the version whose ``infer`` a path names, or None for other paths."""
    endpoint = app.router.find(path)
    route = endpoint.find("POST")
    if route is None or route.action != ACTION:
        return None
    return endpoint.arguments["model_name"], endpoint.arguments.get("model_version", "")


def _refusal(why: str) -> Handler:
    async def refuse(_: Exchange) -> None:
        raise UnsupportedError(why)

    return refuse


def _server_routes(handlers: ModelHandlers) -> list[Route]:
    metadata = Operation("Server metadata", response=(documents.ServerMetadataDocument,))
    ready = {503: (documents.ReadyDocument, "Not ready.")}
    return [
        Route("GET", "/", "server_metadata", (), handlers.server_metadata),
        Route("GET", "/v2", "server_metadata", _INFER, handlers.server_metadata, metadata),
        Route(
            "GET",
            "/v2/health/live",
            "live",
            (),
            handlers.live,
            Operation("Liveness of the server", response=(documents.LiveDocument,)),
        ),
        Route(
            "GET",
            "/v2/health/ready",
            "ready",
            (),
            handlers.ready,
            Operation("Readiness of the server", response=(documents.ReadyDocument,), alternatives=ready),
        ),
        Route(
            "GET",
            "/v2/models",
            "models",
            _INFER,
            handlers.models,
            Operation("Names of the ready models", response=(documents.ModelNamesDocument,)),
        ),
        Route(
            "GET",
            "/v2/models/stats",
            "statistics",
            _INFER,
            handlers.statistics,
            Operation("Statistics of every model", response=(documents.StatisticsDocument,)),
        ),
    ]


def _repository_routes(handlers: ModelHandlers) -> list[Route]:
    index = Operation(
        "Index of models and versions",
        request=(documents.IndexRequestDocument,),
        request_required=False,
        response=(list[documents.IndexEntryDocument],),
        errors=(400, 408, 413),
    )
    load = Operation(
        "Load a model",
        request=(documents.ChangeRequestDocument,),
        request_required=False,
        response=(documents.ChangedDocument,),
        errors=_CHANGE_ERRORS,
    )
    unload = replace(load, summary="Unload a model")
    path = "/v2/repository/models/{model_name}"
    return [
        Route("POST", "/v2/repository/index", "index", _MODELS, handlers.index, index),
        Route("POST", f"{path}/load", "load", _MODELS, handlers.load, load),
        Route("POST", f"{path}/unload", "unload", _MODELS, handlers.unload, unload),
    ]


def _routes_of_model(handlers: ModelHandlers) -> list[Route]:
    def described(summary: str, kind: Any) -> Operation:
        return Operation(summary, response=(kind,), errors=_METADATA_ERRORS)

    metadata = described("Model metadata", documents.ModelMetadataDocument)
    statistics = described("Statistics of a model", documents.StatisticsDocument)
    config = described("Model configuration in Triton's format", documents.ModelConfigDocument)
    ready = Operation(
        "Readiness of a model",
        response=(documents.ModelReadyDocument,),
        alternatives={503: (documents.ModelReadyDocument, "Not ready.")},
        errors=(404,),
    )
    sequences = Operation(
        "Live sequences of a model",
        query=documents.SequencesQuery,
        response=(documents.SequencesDocument,),
        errors=(400, 404, 503),
    )
    cancel = Operation(
        "Cancel a sequence",
        status=204,
        success="The sequence and its waiting requests ended.",
        errors=_METADATA_ERRORS,
    )
    cancel_path = f"{_MODEL}/sequences/{{sequence_id:path}}"
    return [
        Route("GET", _MODEL, "model_metadata", _INFER, handlers.model_metadata, metadata),
        Route("GET", f"{_MODEL}/ready", "model_ready", (), handlers.model_ready, ready),
        Route("GET", f"{_MODEL}/stats", "statistics", _INFER, handlers.statistics, statistics),
        Route("GET", f"{_MODEL}/config", "model_config", _INFER, handlers.model_config, config),
        Route("GET", f"{_MODEL}/sequences", "sequences", _MODELS, handlers.sequences, sequences),
        Route("DELETE", cancel_path, "cancel_sequence", _MODELS, handlers.cancel_sequence, cancel),
    ]


def _inference_routes(handlers: InferenceHandlers) -> list[Route]:
    infer = Operation(
        "Inference",
        parameters=(_HEADER_LENGTH,),
        request=(documents.InferenceRequestDocument,),
        request_content=_TENSORS,
        response=(documents.InferenceResponseDocument,),
        content=_TENSORS,
        errors=_INFER_ERRORS,
    )
    generate = replace(
        infer,
        summary="Text generation",
        request=(documents.GenerateRequestDocument, documents.InferenceRequestDocument),
        response=(documents.GeneratedDocument, documents.InferenceResponseDocument),
    )
    handle = Operation(
        "Opaque request, which the model reads itself (`Model.handle`)",
        request_required=False,
        request_content={**_ANYTHING, "multipart/form-data": {"schema": {}}},
        content=_ANYTHING,
        success="The model's own response.",
        responses={"default": {"description": "The model's own response.", "content": _ANYTHING}},
        errors=tuple(status for status in _INFER_ERRORS if status not in (409, 410)),
    )

    def streamed(operation: Operation) -> Operation:
        summary = f"{operation.summary} with a stream of events"
        return replace(operation, summary=summary, response=(), content=_EVENTS, success=_EVENTS_SENT)

    return [
        Route("POST", f"{_MODEL}/{action}", action, _INFER, handler, operation)
        for action, handler, operation in (
            (ACTION, handlers.infer, infer),
            ("infer_stream", handlers.infer_stream, streamed(infer)),
            ("handle", handlers.handle, handle),
            ("generate", handlers.generate, generate),
            ("generate_stream", handlers.generate_stream, streamed(generate)),
        )
    ]
