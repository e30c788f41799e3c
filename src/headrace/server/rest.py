"""The Open Inference Protocol over HTTP: the routes of models.

Responses are JSON, binary tensors or server-sent events.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import orjson

from headrace.core.errors import UnsupportedError
from headrace.jobs.access import Scope
from headrace.protocols import oip_documents
from headrace.server import model_documents as documents
from headrace.server.application import Guard, WebApp
from headrace.server.dataplane import Dataplane
from headrace.server.errors import NOT_FOUND, ErrorStatus, GrpcCode, StatusError
from headrace.server.http import Exchange
from headrace.server.listener import RestLimits
from headrace.server.observation import Observer
from headrace.server.openapi import documentation_routes
from headrace.server.rest_direct import ACTION, DirectInference
from headrace.server.rest_inference import MODEL, InferenceHandlers, named_model
from headrace.server.routes import Handler, Json, Route, read_json, read_query, route, routes_of

_INFER: Final = (Scope.INFER,)
_FIGURES: Final = (Scope.MONITOR, Scope.MODELS)
_MODELS: Final = (Scope.MODELS,)
_VERSION: Final = f"{MODEL}/versions/{{model_version}}"
_REPOSITORY: Final = "/v2/repository/models/{model_name}"
_METADATA_ERRORS: Final = (404, 503)
_CHANGE: Final[Json] = {
    "request": (documents.ChangeRequestDocument,),
    "request_required": False,
    "errors": (400, 404, 408, 413, 501, 503),
}
_NOT_READY: Final = "Not ready."

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
    """The handlers of routes about models: health, metadata, the repository, instances and sequences."""

    def __init__(self, dataplane: Dataplane, limits: RestLimits) -> None:
        self._dataplane = dataplane
        self._limits = limits

    # Health and metadata

    @route("GET", "/v2/health/live", (), documents.LiveDocument)
    async def live(self, exchange: Exchange) -> None:
        """Report that the process responds."""
        await exchange.respond(200, b'{"live":true}')

    @route(
        "GET",
        "/v2/health/ready",
        (),
        documents.ReadyDocument,
        alternatives={503: (documents.ReadyDocument, _NOT_READY)},
    )
    async def ready(self, exchange: Exchange) -> None:
        """Report the readiness of the server."""
        ready = self._dataplane.ready()
        await exchange.respond(200 if ready else 503, b'{"ready":true}' if ready else b'{"ready":false}')

    @route("GET", "/", (), is_hidden=True)
    @route("GET", "/v2", _INFER, documents.ServerMetadataDocument)
    async def server_metadata(self, exchange: Exchange) -> None:
        """Report the server and its extensions."""
        plane = self._dataplane
        body = oip_documents.encode_server_metadata(plane.name, plane.version, plane.extensions)
        await exchange.respond(200, body)

    @route("GET", "/v2/models", _INFER, documents.ModelNamesDocument)
    async def models(self, exchange: Exchange) -> None:
        """List the ready models that the client's key permits."""
        permits = exchange.client.permits_model
        names = sorted({e.name for e in self._dataplane.index(ready=True) if permits(e.name)})
        await exchange.respond(200, orjson.dumps({"models": names}))

    @route("GET", MODEL, _INFER, documents.ModelMetadataDocument, errors=_METADATA_ERRORS)
    async def model_metadata(self, exchange: Exchange) -> None:
        """Report a model with its inputs and outputs."""
        model, version = named_model(exchange)
        metadata = self._dataplane.metadata(model, version)
        body = oip_documents.encode_model_metadata(metadata, self._dataplane.versions(model))
        await exchange.respond(200, body)

    @route(
        "GET",
        f"{MODEL}/ready",
        (),
        documents.ModelReadyDocument,
        alternatives={503: (documents.ModelReadyDocument, _NOT_READY)},
        errors=(404,),
    )
    async def model_ready(self, exchange: Exchange) -> None:
        """Report the readiness of a model."""
        model, version = named_model(exchange)
        ready = self._dataplane.model_ready(model, version)
        await exchange.respond(200 if ready else 503, orjson.dumps({"name": model, "ready": ready}))

    @route("GET", f"{MODEL}/config", _INFER, documents.ModelConfigDocument, errors=_METADATA_ERRORS)
    async def model_config(self, exchange: Exchange) -> None:
        """Report the configuration of a model in Triton's format."""
        config = oip_documents.model_config(self._dataplane.metadata(*named_model(exchange)))
        await exchange.respond(200, orjson.dumps(config))

    @route("GET", "/v2/models/stats", _FIGURES, documents.StatisticsDocument)
    @route("GET", f"{MODEL}/stats", _FIGURES, documents.StatisticsDocument, errors=_METADATA_ERRORS)
    async def statistics(self, exchange: Exchange) -> None:
        """Report the statistics of one model, or of all that the client's key permits."""
        named = exchange.arguments
        found = self._dataplane.statistics(named.get("model_name", ""), named.get("model_version", ""))
        permits = exchange.client.permits_model
        await exchange.respond(200, oip_documents.encode_statistics([s for s in found if permits(s.name)]))

    # The model repository

    @route(
        "POST",
        "/v2/repository/index",
        _MODELS,
        list[documents.IndexEntryDocument],
        request=(documents.IndexRequestDocument,),
        request_required=False,
        errors=(400, 408, 413),
    )
    async def index(self, exchange: Exchange) -> None:
        """List every version of every model."""
        ready = oip_documents.decode_index_request(await exchange.body(self._limits.body_bytes_max))
        await exchange.respond(200, oip_documents.encode_index(self._dataplane.index(ready=ready)))

    @route("POST", f"{_REPOSITORY}/load", _MODELS, documents.ChangedDocument, **_CHANGE)
    async def load(self, exchange: Exchange) -> None:
        """Load a model, or reload it."""
        model = exchange.arguments["model_name"]
        parameters = oip_documents.decode_load_request(await exchange.body(self._limits.body_bytes_max))
        await self._dataplane.load(model, parameters)
        await exchange.respond(200, orjson.dumps({"name": model, "load": True}))

    @route("POST", f"{_REPOSITORY}/unload", _MODELS, documents.ChangedDocument, **_CHANGE)
    async def unload(self, exchange: Exchange) -> None:
        """Unload a model."""
        model = exchange.arguments["model_name"]
        oip_documents.decode_load_request(await exchange.body(self._limits.body_bytes_max))
        await self._dataplane.unload(model)
        await exchange.respond(200, orjson.dumps({"name": model, "unload": True}))

    # Instances

    @route("GET", f"{MODEL}/instances", _FIGURES, documents.InstancesDocument, errors=_METADATA_ERRORS)
    async def instances(self, exchange: Exchange) -> None:
        """Report the numbers of instances of a model."""
        status = self._dataplane.instances(*named_model(exchange))
        await exchange.respond(200, oip_documents.encode_instances(status))

    @route(
        "PUT",
        f"{MODEL}/instances",
        _MODELS,
        documents.InstancesDocument,
        request=(documents.InstancesRequestDocument,),
        errors=(400, 404, 408, 413, 503),
    )
    async def set_instances(self, exchange: Exchange) -> None:
        """Change the number of instances of a loaded model while it serves.

        The response follows once new instances are ready. Removed instances finish their requests
        afterwards. If an instance fails to load, the previous number stays.
        """
        body = await exchange.body(self._limits.body_bytes_max)
        wanted = read_json(documents.InstancesRequestDocument, body)
        status = await self._dataplane.set_instances(
            *named_model(exchange), wanted.instances, wanted.instances_max
        )
        await exchange.respond(200, oip_documents.encode_instances(status))

    # Sequences

    @route(
        "GET",
        f"{MODEL}/sequences",
        _MODELS,
        documents.SequencesDocument,
        query=documents.SequencesQuery,
        errors=(400, 404, 503),
    )
    async def sequences(self, exchange: Exchange) -> None:
        """List live sequences of a model."""
        limit = read_query(documents.SequencesQuery, exchange.query).limit
        listing = self._dataplane.sequences(*named_model(exchange), limit=limit)
        await exchange.respond(200, oip_documents.encode_listing(listing))

    @route(
        "DELETE",
        f"{MODEL}/sequences/{{sequence_id:path}}",
        _MODELS,
        status=204,
        success="The sequence and its waiting requests ended.",
        query=documents.SequenceQuery,
        errors=(400, *_METADATA_ERRORS),
    )
    async def cancel_sequence(self, exchange: Exchange) -> None:
        """End a sequence with its waiting requests."""
        model, version = named_model(exchange)
        id = exchange.arguments["sequence_id"]
        namespace = read_query(documents.SequenceQuery, exchange.query).namespace
        if namespace is None:
            namespace = exchange.client.tenant
        if not self._dataplane.cancel_sequence(model, version, id, namespace):
            why = f"model {model}: no sequence has the id {id[:200]!r}"
            raise StatusError(ErrorStatus(NOT_FOUND, GrpcCode.NOT_FOUND, why))
        await exchange.respond(204)


def model_routes(
    dataplane: Dataplane,
    limits: RestLimits | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> list[Route]:
    """Return the routes of the models of a dataplane."""
    limits = limits or RestLimits()
    routes = routes_of(ModelHandlers(dataplane, limits)) + routes_of(
        InferenceHandlers(dataplane, limits, clock)
    )
    of_models = [found for found in routes if found.path.startswith(MODEL)]
    routes += [replace(found, path=found.path.replace(MODEL, _VERSION)) for found in of_models]
    for path, why in _UNSUPPORTED.items():
        routes += (Route(method, path, "not_offered", (), _refusal(why)) for method in ("GET", "POST"))
    return [replace(found, is_lenient=True) for found in routes]


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
            limits,
            find=lambda path: _find_inference(app, path),
            clock=clock,
        )
    return app


RestApp = model_app  # the earlier name, for one release


def _find_inference(app: WebApp, path: str) -> tuple[str, str] | None:
    """Return the model and the version whose ``infer`` a path names, or None for other paths."""
    endpoint = app.router.find(path)
    found = endpoint.find("POST")
    if found is None or found.action != ACTION:
        return None
    return endpoint.arguments["model_name"], endpoint.arguments.get("model_version", "")


def _refusal(why: str) -> Handler:
    async def refuse(_: Exchange) -> None:
        raise UnsupportedError(why)

    return refuse
