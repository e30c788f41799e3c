"""All gRPC methods over a dataplane in one table, counted and observed, independent of the transport.

A transport (`grpc_aio`, `grpc_asgi`) looks a `GrpcMethod` up by its path, runs it, and maps its
exceptions to a status. Cancelling the task of a method cancels the work of the model.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from headrace.core.errors import ModelNotFoundError, UnsupportedError
from headrace.jobs.access import Access, Scope
from headrace.protocols.health_and_reflection import NOT_SERVING, SERVICE_UNKNOWN, SERVING
from headrace.protocols.oip_documents import model_config
from headrace.protocols.oip_grpc import server_info
from headrace.protocols.protobuf import (
    INFERENCE,
    REPOSITORY,
    encode_message,
    message_class,
    parse_message,
)
from headrace.server.dataplane import Dataplane
from headrace.server.errors import GrpcCode, quiet_status_of
from headrace.server.grpc_inference import GrpcInference, GrpcStreamSettings
from headrace.server.health_and_reflection import GrpcHealth, reflection_methods
from headrace.server.listener import GrpcCall, GrpcMethod, StreamHandler, UnaryHandler
from headrace.server.observation import CURRENT, Observer, Observers, RequestObservation, ResponseCounters

INFERENCE_SERVICE: Final = f"{INFERENCE}.GRPCInferenceService"
REPOSITORY_SERVICE: Final = f"{REPOSITORY}.ModelRepositoryService"
_SERVICES: Final = ("", INFERENCE_SERVICE, REPOSITORY_SERVICE)
"""The names whose health is that of the whole server. Other names are those of models."""

_OK: Final = GrpcCode.OK.name
_CANCELLED: Final = GrpcCode.CANCELLED.name
_MODEL_READY_REQUEST: Any = message_class("ModelReadyRequest")
_METADATA_REQUEST: Any = message_class("ModelMetadataRequest")
_CONFIG_REQUEST: Any = message_class("ModelConfigRequest")
_STATISTICS_REQUEST: Any = message_class("ModelStatisticsRequest")
_UNSUPPORTED: Final = {
    **{
        f"{kind}SharedMemory{verb}": f"{text}shared memory is not offered: send tensors in raw_input_contents"
        for kind, text in (("System", ""), ("Cuda", "CUDA "))
        for verb in ("Status", "Register", "Unregister")
    },
    "TraceSetting": "trace settings cannot be changed over the network",
    "LogSettings": "log settings cannot be changed over the network",
}


class GrpcService:
    """The Open Inference Protocol with additions of MLServer and Triton, health and reflection.

    Args:
        dataplane: The models.
        access: The API keys, checked at the begin of every call; None requires no key.
        streams: The response format and the limits of streams.
        health_poll_s: The interval in seconds at which a health watch looks for a change.
        now: Monotonic seconds of the dataplane's clock.
        observers: The observers of every call, as in `WebApp`; None observes nothing. Calls are counted
            in either case.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        access: Access | None = None,
        streams: GrpcStreamSettings | None = None,
        health_poll_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] | None = None,
    ) -> None:
        self.response_counters = ResponseCounters("grpc")
        self._observers = None if observers is None else Observers(observers)
        self._now = now
        self._dataplane = dataplane
        self._inference = GrpcInference(dataplane, access, now, streams)
        self._health = GrpcHealth(self._status, _SERVICES, check=self._inference.check, poll_s=health_poll_s)

    def drain(self) -> None:
        """Report in health checks that the server stops. Watches end."""
        self._health.drain()

    def methods(self) -> dict[str, GrpcMethod]:
        """Return every method by its path."""
        table: dict[str, dict[str, UnaryHandler]] = {
            INFERENCE_SERVICE: {
                "ModelInfer": self._inference.model_infer,
                "ServerLive": self._server_live,
                "ServerReady": self._server_ready,
                "ServerMetadata": self._server_metadata,
                "ModelReady": self._model_ready,
                "ModelMetadata": self._model_metadata,
                "ModelConfig": self._model_config,
                "ModelStatistics": self._model_statistics,
                **_repository_methods(self._dataplane, self._inference, INFERENCE),
                **{name: _unsupported_method(why) for name, why in _UNSUPPORTED.items()},
            },
            REPOSITORY_SERVICE: _repository_methods(self._dataplane, self._inference, REPOSITORY),
        }
        methods = {
            f"/{service}/{name}": GrpcMethod(unary=unary)
            for service, unaries in table.items()
            for name, unary in unaries.items()
        }
        stream_infer = GrpcMethod(stream=self._inference.model_stream_infer)
        methods |= {f"/{INFERENCE_SERVICE}/ModelStreamInfer": stream_infer, **self._health.methods()}
        methods |= reflection_methods(
            methods,
            check=self._inference.check,
            wrapped_streams=self._inference.streams.dialect == "triton",
        )
        return observe_methods(methods, self.response_counters, self._observers, self._now)

    # Probes have no key, so these three methods need none.

    async def _server_live(self, _call: GrpcCall, _: bytes) -> bytes:
        return encode_message("ServerLiveResponse", live=True)

    async def _server_ready(self, _call: GrpcCall, _: bytes) -> bytes:
        return encode_message("ServerReadyResponse", ready=self._dataplane.ready())

    async def _model_ready(self, _: GrpcCall, data: bytes) -> bytes:
        request = parse_message(_MODEL_READY_REQUEST, data)
        ready = self._dataplane.model_ready(request.name, request.version)
        return encode_message("ModelReadyResponse", ready=ready)

    async def _server_metadata(self, call: GrpcCall, _: bytes) -> bytes:
        self._inference.check(call)
        plane = self._dataplane
        return encode_message(
            "ServerMetadataResponse", name=plane.name, version=plane.version, extensions=plane.extensions
        )

    async def _model_metadata(self, call: GrpcCall, data: bytes) -> bytes:
        key = self._inference.check(call)
        request = parse_message(_METADATA_REQUEST, data)
        key.require_model(request.name)
        metadata = self._dataplane.metadata(request.name, request.version)
        return server_info.encode_metadata(metadata, self._dataplane.versions(request.name))

    async def _model_config(self, call: GrpcCall, data: bytes) -> bytes:
        key = self._inference.check(call)
        request = parse_message(_CONFIG_REQUEST, data)
        key.require_model(request.name)
        metadata = self._dataplane.metadata(request.name, request.version)
        return encode_message("ModelConfigResponse", config=model_config(metadata))

    async def _model_statistics(self, call: GrpcCall, data: bytes) -> bytes:
        key = self._inference.check(call, Scope.MONITOR, Scope.MODELS)
        request = parse_message(_STATISTICS_REQUEST, data)
        if request.name:
            key.require_model(request.name)
        found = self._dataplane.statistics(request.name, request.version)
        return server_info.encode_statistics([s for s in found if key.permits_model(s.name)])

    def _status(self, service: str) -> int:
        """Return the health of the server, of one of its services, or of a model."""
        plane = self._dataplane
        try:
            ready = plane.ready() if service in _SERVICES else plane.model_ready(service, "")
        except ModelNotFoundError:
            return SERVICE_UNKNOWN
        return SERVING if ready else NOT_SERVING


def _repository_methods(
    dataplane: Dataplane, inference: GrpcInference, package: str
) -> dict[str, UnaryHandler]:
    """Return the three methods that two services share, with the messages of one package."""
    index_request, load_request, unload_request = (
        message_class(f"Repository{name}Request", package=package)
        for name in ("Index", "ModelLoad", "ModelUnload")
    )

    async def index(call: GrpcCall, data: bytes) -> bytes:
        inference.check(call, Scope.MODELS)
        return server_info.encode_index(
            dataplane.index(ready=parse_message(index_request, data).ready), package
        )

    async def load(call: GrpcCall, data: bytes) -> bytes:
        key = inference.check(call, Scope.MODELS)
        request = parse_message(load_request, data)
        name = server_info.requested_model(request)
        key.require_model(name)
        await dataplane.load(name, server_info.load_parameters(request))
        return encode_message("RepositoryModelLoadResponse", package=package, model_name=name, isLoaded=True)

    async def unload(call: GrpcCall, data: bytes) -> bytes:
        key = inference.check(call, Scope.MODELS)
        name = server_info.requested_model(parse_message(unload_request, data))
        key.require_model(name)
        await dataplane.unload(name)
        return encode_message(
            "RepositoryModelUnloadResponse", package=package, model_name=name, isUnloaded=True
        )

    return {"RepositoryIndex": index, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}


def _unsupported_method(why: str) -> UnaryHandler:
    async def refuse(_: GrpcCall, __: bytes) -> NoReturn:
        raise UnsupportedError(why)

    return refuse


def observe_methods(
    methods: Mapping[str, GrpcMethod],
    counters: ResponseCounters,
    observers: Observers | None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, GrpcMethod]:
    """Return the methods, wrapped so that each finished call is counted and observed.

    `counters` count calls by the name of the method and the status code. A running call is
    `CURRENT` while it is observed, so that its handler can fill the observation in. `clock` is the
    clock of the engines.
    """
    observer = _CallObserver(counters, observers, clock)
    return {
        path: GrpcMethod(
            None if method.unary is None else _unary(path, method.unary, observer),
            None if method.stream is None else _stream(path, method.stream, observer),
        )
        for path, method in methods.items()
    }


@dataclass(frozen=True, slots=True)
class _CallObserver:
    """The counters and observers of calls."""

    counters: ResponseCounters
    observers: Observers | None
    clock: Callable[[], float]

    @contextmanager
    def observe(self, path: str, call: GrpcCall) -> Generator[RequestObservation | None, None, None]:
        """Observe a call, and count it at its end. Yield its observation, if there are observers."""
        action = path.rpartition("/")[2]
        observation: RequestObservation | None = None
        if self.observers is not None:
            observation = RequestObservation("grpc", "POST", path, began_s=self.clock(), header=call.metadata)
            observation.action = action
            CURRENT.set(observation)
            self.observers.begin(observation)
        code = _CANCELLED
        try:
            yield observation
            code = _OK
        except Exception as error:
            # The transport logs unexpected errors.
            status = quiet_status_of(error)
            code = status.grpc.name
            if observation is not None:
                observation.on_error(error, status)
            raise
        finally:
            self.counters.sent[action, code] += 1
            if observation is not None and self.observers is not None:
                observation.status, observation.ended_s = code, self.clock()
                self.observers.end(observation)


def _unary(path: str, handler: UnaryHandler, observer: _CallObserver) -> UnaryHandler:
    if observer.observers is None:
        return _count_calls(path.rpartition("/")[2], handler, observer.counters)

    async def observed(call: GrpcCall, data: bytes) -> bytes:
        with observer.observe(path, call) as observation:
            response = handler(call, data)
            if not isinstance(response, bytes):
                response = await response
            if observation is not None:
                observation.bytes_in, observation.bytes_out = len(data), len(response)
        return response

    return observed


def _count_calls(action: str, handler: UnaryHandler, counters: ResponseCounters) -> UnaryHandler:
    """Return a handler that only counts, with the least work for each call."""

    def counted(call: GrpcCall, data: bytes) -> bytes | Awaitable[bytes]:
        try:
            response = handler(call, data)
        except Exception as error:
            counters.sent[action, quiet_status_of(error).grpc.name] += 1
            raise
        if not isinstance(response, bytes):
            return later(response)
        counters.sent[action, _OK] += 1
        return response

    async def later(awaited: Awaitable[bytes]) -> bytes:
        code = _CANCELLED
        try:
            response = await awaited
            code = _OK
        except Exception as error:
            code = quiet_status_of(error).grpc.name
            raise
        finally:
            counters.sent[action, code] += 1
        return response

    return counted


def _stream(path: str, handler: StreamHandler, observer: _CallObserver) -> StreamHandler:
    async def observed(
        call: GrpcCall, requests: AsyncIterator[bytes]
    ) -> AsyncGenerator[Sequence[bytes], None]:
        with observer.observe(path, call) as observation:
            async with aclosing(handler(call, requests)) as batches:
                async for batch in batches:
                    if observation is not None:
                        observation.on_items_sent(len(batch), observer.clock())
                        observation.bytes_out += sum(map(len, batch))
                    yield batch

    return observed
