"""Every gRPC method over a dataplane, in one table, whatever carries the calls.

A carrier (`grpc_aio`, `grpc_asgi`) looks a `Method` up by its path, runs it, and turns what it raises into a status.
Cancelling the task that runs a method cancels the model's work.
"""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from typing import Any, Final, NoReturn

from headrace.core.errors import UnsupportedError
from headrace.protocols.oip_grpc import repository
from headrace.protocols.oip_grpc.messages import message_class, parsed
from headrace.protocols.oip_grpc.reflection import Reflection
from headrace.protocols.oip_grpc.schema import (
    INFERENCE,
    REFLECTION_V1,
    REFLECTION_V1ALPHA,
    REPOSITORY,
)
from headrace.server.answers import Answers
from headrace.server.dataplane import Dataplane
from headrace.server.grpc_contract import Call, Method, Stream, Unary
from headrace.server.grpc_health import Health
from headrace.server.grpc_inference import Inference
from headrace.server.grpc_observed import observed
from headrace.server.grpc_streams import InferenceStreams, StreamSettings
from headrace.server.observation import Observer, Observers
from headrace.server.security import Access, Role

INFERENCE_SERVICE: Final = "inference.GRPCInferenceService"
REPOSITORY_SERVICE: Final = "inference.model_repository.ModelRepositoryService"
HEALTH_SERVICE: Final = "grpc.health.v1.Health"

_NOT_OFFERED: Final = {
    "SystemSharedMemoryStatus": "shared memory is not offered: send tensors in raw_input_contents",
    "SystemSharedMemoryRegister": "shared memory is not offered: send tensors in raw_input_contents",
    "SystemSharedMemoryUnregister": "shared memory is not offered: send tensors in raw_input_contents",
    "CudaSharedMemoryStatus": "CUDA shared memory is not offered: send tensors in raw_input_contents",
    "CudaSharedMemoryRegister": "CUDA shared memory is not offered: send tensors in raw_input_contents",
    "CudaSharedMemoryUnregister": "CUDA shared memory is not offered: send tensors in raw_input_contents",
    "TraceSetting": "trace settings cannot be changed over the network",
    "LogSettings": "log settings cannot be changed over the network",
}


class GrpcService:
    """The Open Inference Protocol with MLServer's and Triton's additions, health and reflection.

    Args:
        dataplane: What answers.
        access: Asked at the begin of every call; None lets everybody do everything.
        streams: Dialect and bounds of streams.
        health_poll_s: How soon a health watch notices a change.
        now: Monotonic seconds, on the dataplane's clock.
        observers: Told of every call, as those of `RestApp` are; None: nothing is observed. `answers` counts either way.
    """

    def __init__(
        self,
        dataplane: Dataplane,
        *,
        access: Access | None = None,
        streams: StreamSettings | None = None,
        health_poll_s: float = 1.0,
        now: Callable[[], float] = time.monotonic,
        observers: Sequence[Observer] | None = None,
    ) -> None:
        self.answers = Answers("grpc")
        self._observers = None if observers is None else Observers(observers)
        self._now = now
        settings = streams or StreamSettings()
        self._dataplane = dataplane
        self._inference = Inference(dataplane, access, now)
        self._streams = InferenceStreams(self._inference, settings)
        self._health = Health(self._inference, (INFERENCE_SERVICE, REPOSITORY_SERVICE), poll_s=health_poll_s)
        self._wrapped_streams = settings.dialect == "triton"

    def drain(self) -> None:
        """Tell whoever asks for the health that the server stops; watches end."""
        self._health.drain()

    def methods(self) -> dict[str, Method]:
        """Every method by its path, such as ``/inference.GRPCInferenceService/ModelInfer``."""
        table: dict[str, dict[str, Unary]] = {
            INFERENCE_SERVICE: {
                "ModelInfer": self._inference.model_infer,
                "ServerLive": self._server_live,
                "ServerReady": self._server_ready,
                "ServerMetadata": self._server_metadata,
                "ModelReady": self._model_ready,
                "ModelMetadata": self._model_metadata,
                "ModelConfig": self._model_config,
                "ModelStatistics": self._model_statistics,
                **_repository_methods(self._dataplane, self._inference, INFERENCE.package),
                **{name: _refusal(why) for name, why in _NOT_OFFERED.items()},
            },
            REPOSITORY_SERVICE: _repository_methods(self._dataplane, self._inference, REPOSITORY.package),
            HEALTH_SERVICE: {"Check": self._health.check, "List": self._health.list},
        }
        streams: dict[str, Stream] = {
            f"/{INFERENCE_SERVICE}/ModelStreamInfer": self._streams.model_stream_infer,
            f"/{HEALTH_SERVICE}/Watch": self._health.watch,
        }
        for file in (REFLECTION_V1, REFLECTION_V1ALPHA):
            path = f"/{file.package}.ServerReflection/ServerReflectionInfo"
            streams[path] = self._reflection(Reflection(file.package, wrapped_streams=self._wrapped_streams))
        methods = {
            f"/{service}/{name}": Method(unary=unary)
            for service, unaries in table.items()
            for name, unary in unaries.items()
        }
        methods |= {path: Method(stream=stream) for path, stream in streams.items()}
        return observed(methods, self.answers, self._observers, self._now)

    # Probes have no key: these three need none.

    async def _server_live(self, _call: Call, _: bytes) -> bytes:
        return _LIVE(live=self._dataplane.live()).SerializeToString()

    async def _server_ready(self, _call: Call, _: bytes) -> bytes:
        return _READY(ready=self._dataplane.ready()).SerializeToString()

    async def _model_ready(self, _: Call, data: bytes) -> bytes:
        asked = parsed(_MODEL_READY_REQUEST, data)
        ready = self._dataplane.model_ready(asked.name, asked.version)
        return _MODEL_READY(ready=ready).SerializeToString()

    async def _server_metadata(self, call: Call, _: bytes) -> bytes:
        self._inference.check(call)
        plane = self._dataplane
        return repository.encode_server_metadata(plane.name, plane.version, plane.extensions)

    async def _model_metadata(self, call: Call, data: bytes) -> bytes:
        self._inference.check(call)
        asked = parsed(_METADATA_REQUEST, data)
        metadata = self._dataplane.metadata(asked.name, asked.version)
        return repository.encode_metadata(metadata, self._dataplane.versions(asked.name))

    async def _model_config(self, call: Call, data: bytes) -> bytes:
        self._inference.check(call)
        asked = parsed(_CONFIG_REQUEST, data)
        return repository.encode_config(self._dataplane.metadata(asked.name, asked.version))

    async def _model_statistics(self, call: Call, data: bytes) -> bytes:
        self._inference.check(call)
        asked = parsed(_STATISTICS_REQUEST, data)
        return repository.encode_statistics(self._dataplane.statistics(asked.name, asked.version))

    def _reflection(self, reflection: Reflection) -> Stream:
        async def answers(
            call: Call, messages: AsyncIterator[bytes]
        ) -> AsyncGenerator[Sequence[bytes], None]:
            self._inference.check(call)
            async for message in messages:
                yield (reflection.answer(message),)

        return answers


_LIVE: Any = message_class("ServerLiveResponse")
_READY: Any = message_class("ServerReadyResponse")
_MODEL_READY: Any = message_class("ModelReadyResponse")
_MODEL_READY_REQUEST: Any = message_class("ModelReadyRequest")
_METADATA_REQUEST: Any = message_class("ModelMetadataRequest")
_CONFIG_REQUEST: Any = message_class("ModelConfigRequest")
_STATISTICS_REQUEST: Any = message_class("ModelStatisticsRequest")


def _repository_methods(dataplane: Dataplane, inference: Inference, package: str) -> dict[str, Unary]:
    """The three methods that two services have, each with messages of its own package."""
    index_request, load_request, unload_request, load_response, unload_response = (
        message_class(f"Repository{name}", package=package)
        for name in (
            "IndexRequest",
            "ModelLoadRequest",
            "ModelUnloadRequest",
            "ModelLoadResponse",
            "ModelUnloadResponse",
        )
    )

    async def index(call: Call, data: bytes) -> bytes:
        inference.check(call, Role.ADMIN)
        return repository.encode_index(dataplane.index(ready=parsed(index_request, data).ready), package)

    async def load(call: Call, data: bytes) -> bytes:
        inference.check(call, Role.ADMIN)
        asked = parsed(load_request, data)
        name = repository.named_model(asked)
        await dataplane.load(name, repository.load_parameters(asked))
        return load_response(model_name=name, isLoaded=True).SerializeToString()

    async def unload(call: Call, data: bytes) -> bytes:
        inference.check(call, Role.ADMIN)
        name = repository.named_model(parsed(unload_request, data))
        await dataplane.unload(name)
        return unload_response(model_name=name, isUnloaded=True).SerializeToString()

    return {"RepositoryIndex": index, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}


def _refusal(why: str) -> Unary:
    async def refuse(_: Call, __: bytes) -> NoReturn:
        raise UnsupportedError(why)

    return refuse
