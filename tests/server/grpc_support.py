"""A dataplane over plain functions, and gRPC clients that use headrace's private messages."""

import asyncio
import functools
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from headrace.core.errors import ModelNotFoundError
from headrace.core.statistics import BatchStatistics, Duration, ModelIndexEntry, ModelState, ModelStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor, TensorSpec
from headrace.jobs.access import Access, Scope
from headrace.protocols.protobuf import message_class
from headrace.server.grpc_aio import GrpcAioServer, GrpcAioSettings
from headrace.server.grpc_asgi import GrpcAsgi
from headrace.server.grpc_inference import GrpcStreamSettings
from headrace.server.grpc_service import GrpcService
from server.support import key_of

WAIT_S = 30.0
INFERENCE = "/inference.GRPCInferenceService/"

Request = message_class("ModelInferRequest")
Response = message_class("ModelInferResponse")
StreamResponse = message_class("ModelStreamInferResponse")


@dataclass
class FunctionModel:
    """A model: `predict` handles one request, `stream` a stream of them; either may be missing."""

    predict: Callable[[InferRequest], Any] | None = None
    stream: Callable[[AsyncIterator[InferRequest]], Any] | None = None
    metadata: ModelMetadata = field(default_factory=lambda: ModelMetadata("m"))


class FunctionDataplane:
    """The whole interface of the dataplane over a dict of functions."""

    name, version, extensions = "headrace", "1.2", ("model_repository", "statistics")

    def __init__(self, **models: FunctionModel) -> None:
        self.models = models
        for name, served in models.items():
            served.metadata = ModelMetadata(
                name,
                "1",
                "python",
                served.metadata.inputs or (TensorSpec("x", "FP32", (-1, 2)),),
                served.metadata.outputs or (TensorSpec("y", "FP32", (-1, 2)),),
                max_batch_rows=8,
                can_predict=served.predict is not None,
                can_stream=served.stream is not None,
            )
        self.is_ready = True
        self.seen: list[InferRequest] = []
        self.loaded: list[tuple[str, Any]] = []
        self.asked = asyncio.Event()
        self.cancellations: asyncio.Queue[str] = asyncio.Queue()

    def _find(self, model: str, version: str) -> FunctionModel:
        if model not in self.models or version not in ("", "1"):
            raise ModelNotFoundError(model, f"no such model or version {version!r}")
        return self.models[model]

    def infer_now(self, model: str, version: str, request: InferRequest, times: Any = None) -> None:
        """Return None: no model is inline."""
        del model, version, request, times

    async def infer(
        self, model: str, version: str, request: InferRequest, times: Any = None
    ) -> InferResponse:
        del times
        self.seen.append(request)
        self.asked.set()
        try:
            response = self._find(model, version).predict(request)
            if asyncio.iscoroutine(response):
                response = await response
        except asyncio.CancelledError:
            self.cancellations.put_nowait(model)
            raise
        return InferResponse((Tensor("y", response),), model, "1", request.id)

    async def stream_request(self, model: str, version: str, request: InferRequest) -> Any:
        async def requests():
            yield request

        async with aclosing(self.stream_requests(model, version, requests())) as responses:
            async for some in responses:
                yield some

    async def stream_requests(self, model: str, version: str, requests: AsyncIterator[InferRequest]) -> Any:
        try:
            async for response in self._find(model, version).stream(requests):
                yield [InferResponse((Tensor("y", response),), model, "1")]
        except (asyncio.CancelledError, GeneratorExit):
            self.cancellations.put_nowait(model)
            raise

    def ready(self) -> bool:
        return self.is_ready

    def model_ready(self, model: str, version: str) -> bool:
        self._find(model, version)
        return self.is_ready

    def metadata(self, model: str, version: str) -> ModelMetadata:
        return self._find(model, version).metadata

    def versions(self, model: str) -> tuple[str, ...]:
        return ("1",)

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        listed = tuple(ModelIndexEntry(name, "1", ModelState.READY) for name in self.models)
        return (
            listed if ready else (*listed, ModelIndexEntry("broken", "1", ModelState.UNAVAILABLE, "no file"))
        )

    async def load(self, model: str, parameters: Any = None) -> None:
        self.loaded.append((model, parameters))

    async def unload(self, model: str) -> None:
        self.loaded.append((model, None))

    def statistics(self, model: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        return tuple(
            ModelStatistics(
                name,
                "1",
                rows=7,
                calls=3,
                success=Duration(3, 99),
                batches=(BatchStatistics(2, Duration(1, 5)),),
            )
            for name in self.models
            if model in ("", name)
        )


USER, ADMIN, LIMITED = "user-key-0123456789", "admin-key-0123456789", "limited-key-0123456789"


def key_access() -> Access:
    """Three keys: one may call models, one may do everything, and one everything with another model."""
    limited = key_of("limited", LIMITED, Scope.MODELS, models=frozenset({"another"}))
    return Access(dict([key_of("user", USER, Scope.INFER), key_of("admin", ADMIN, Scope.ADMIN), limited]))


def echo(request: InferRequest) -> np.ndarray:
    """The first input, unchanged."""
    return request.inputs[0].data


def in_event_loop(test: Any) -> Any:
    """Run a coroutine function as a test, in its own event loop, for WAIT_S seconds at the longest."""

    @functools.wraps(test)
    def run(*args: Any, **settings: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **settings), WAIT_S))

    return run


@asynccontextmanager
async def serving(
    dataplane: FunctionDataplane,
    carrier: str = "aio",
    *,
    streams: GrpcStreamSettings | None = None,
    access: Any = None,
    **settings: Any,
) -> Any:
    """Start a real server on a free port, and open a channel to it."""
    service = GrpcService(dataplane, access=access, streams=streams, health_poll_s=0.01)
    options = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    carried = _aio(service, settings) if carrier == "aio" else _asgi(service, settings)
    async with (
        carried as port,
        grpc.aio.insecure_channel(f"127.0.0.1:{port}", options=options) as channel,
    ):
        channel.port = port
        yield channel


@asynccontextmanager
async def _aio(service: GrpcService, settings: Any) -> Any:
    server = GrpcAioServer(service, GrpcAioSettings(port=0, **settings))
    await server.start()
    try:
        yield server.port
    finally:
        await server.stop()


@asynccontextmanager
async def _asgi(service: GrpcService, settings: Any) -> Any:
    import uvicorn

    app = GrpcAsgi(service, **settings)
    config = uvicorn.Config(app, http="zttp", http2=True, lifespan="off", log_config=None)
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        await server.startup(sockets=[listener])
        try:
            yield listener.getsockname()[1]
        finally:
            service.drain()
            server.force_exit = True
            await server.shutdown(sockets=[listener])


def code_of(error: Any) -> str:
    """Return the name of the status of a failed call."""
    return error.value.code().name


def infer_request(
    array: np.ndarray, *, model: str = "m", raw: bool = True, datatype: str = "FP32", **more: Any
) -> Any:
    """Return a ModelInferRequest with one input `x`."""
    request = Request(model_name=model, **more)
    entry = request.inputs.add(name="x", datatype=datatype, shape=array.shape)
    if raw:
        request.raw_input_contents.append(array.tobytes())
    else:
        entry.contents.fp32_contents.extend(array.ravel().tolist())
    return request


def values(response: Any) -> np.ndarray:
    """Return the first output of a ModelInferResponse, FP32."""
    output = response.outputs[0]
    if response.raw_output_contents:
        return np.frombuffer(response.raw_output_contents[0], np.float32).reshape(output.shape)
    return np.array(output.contents.fp32_contents, np.float32).reshape(output.shape)


def unary(channel: Any, name: str = "ModelInfer", *, response: Any = Response, path: str = INFERENCE) -> Any:
    """Return a callable for one unary method; it takes messages."""
    return channel.unary_unary(
        f"{path}{name}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=response.FromString,
    )


def bidi(
    channel: Any, name: str = "ModelStreamInfer", *, response: Any = Response, path: str = INFERENCE
) -> Any:
    """Return a callable for one method that streams both ways; it takes messages."""
    return channel.stream_stream(
        f"{path}{name}",
        request_serializer=lambda m: m.SerializeToString(),
        response_deserializer=response.FromString,
    )
