"""The operations of a served model, independent of the protocol.

REST and gRPC call a `Dataplane` in the event loop of the server: they pass requests by model and
version and receive responses, streams of responses, or errors of `headrace.core.errors`.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import numpy as np

from headrace.core.errors import (
    DataError,
    ForbiddenError,
    ModelContractError,
    ModelError,
    ModelInputError,
    StoppedError,
    UnsupportedError,
)
from headrace.core.model import HandleRequest, HandleResponse
from headrace.core.predictor import RequestTimes
from headrace.core.sequence import SequenceListing
from headrace.core.statistics import InstanceStatus, ModelIndexEntry, ModelStatistics, SequenceStatistics
from headrace.core.tensor import InferRequest, InferResponse, ModelMetadata, Tensor
from headrace.engine.admission import ResponseStream
from headrace.engine.engine import Engine
from headrace.engine.repository import ModelRepository

CONCURRENT_REQUESTS_MAX: Final = 32
"""The maximum number of requests of one stream in flight, for a model that does not stream itself."""
COLLECTED_RESPONSES_MAX: Final = 65_536
"""The maximum number of stream items that are joined to one response."""

EXTENSIONS: Final = (
    "binary_tensor_data",
    "generate",
    "model_configuration",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "sequence",
    "statistics",
    "parameters",
)


_NONE: Final[Mapping[str, str]] = {}


class Dataplane:
    """The operations on the models of a repository.

    All coroutines run in one event loop and never block it. `load` and `unload` raise
    ForbiddenError unless `changeable` is true.
    """

    def __init__(self, repository: ModelRepository, *, version: str = "0", changeable: bool = False) -> None:
        self.name = "headrace"
        self.version = version
        self.extensions: tuple[str, ...] = EXTENSIONS
        self._repository = repository
        self._changeable = changeable
        self._changing = asyncio.Lock()
        """Held while models or their instances are loaded or unloaded. Waiting for it occupies no thread."""
        self._draining = False

    # Health

    def ready(self) -> bool:
        """Return True if the server should receive requests.

        The models are loaded, every instance is alive, every checkpoint store can be reached, and
        the server is not draining.
        """
        return not self._draining and self._repository.ready()

    def drain(self) -> None:
        """Report "not ready" from now on. Requests are still served."""
        self._draining = True

    def model_ready(self, model: str, version: str = "") -> bool:
        """Return True if a model can serve requests.

        Raises:
            ModelNotFoundError: The model or version is unknown.
        """
        return not self._draining and self._repository.model_ready(model, version)

    # Metadata

    def metadata(self, model: str, version: str = "") -> ModelMetadata:
        """Return the metadata of one version.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
        """
        return self._repository.engine(model, version).metadata

    def ready_metadata(self) -> list[ModelMetadata]:
        """Return the metadata of every ready version, sorted by name."""
        found: list[ModelMetadata] = []
        for entry in self._repository.index(ready=True):
            with suppress(ModelError):  # unloaded a moment ago
                found.append(self._repository.engine(entry.name, entry.version).metadata)
        return found

    def versions(self, model: str) -> tuple[str, ...]:
        """Return the ready versions of a model, oldest first.

        Raises:
            ModelNotFoundError: The model is unknown.
        """
        return self._repository.versions(model)

    def index(self, *, ready: bool = False) -> tuple[ModelIndexEntry, ...]:
        """Return every version of every model, or only the ready ones."""
        return self._repository.index(ready=ready)

    def statistics(self, model: str = "", version: str = "") -> tuple[ModelStatistics, ...]:
        """Return figures since loading: of all models, one model, or one version.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
        """
        return self._repository.statistics(model, version)

    async def load(self, model: str, parameters: Mapping[str, Any] | None = None) -> None:
        """Load a model from the models folder, or reload it.

        Raises:
            ForbiddenError: The server was started without a models folder.
            UnsupportedError: The parameters contain a configuration or files.
            ModelNotFoundError: The folder has no such model.
            ConfigError: The settings of the model are invalid.
            ModelLoadError: The model failed to load.
        """
        self._check_changeable()
        unknown = set(parameters or ()) - {"unload_dependents"}
        if unknown:
            raise UnsupportedError(
                f"model {model}: unsupported load parameters {', '.join(map(repr, sorted(unknown)))}: "
                "change the files of the model in the models folder instead"
            )
        async with self._changing:
            await asyncio.to_thread(self._repository.load, model)

    async def unload(self, model: str) -> None:
        """Unload every version of a model after it has answered its pending requests.

        Raises:
            ForbiddenError: The server was started without a models folder.
            ModelNotFoundError: The model is unknown.
        """
        self._check_changeable()
        async with self._changing:
            await asyncio.to_thread(self._repository.unload, model)

    # The number of instances

    def instances(self, model: str, version: str = "") -> InstanceStatus:
        """Return the numbers of instances of a version.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
        """
        return self._repository.instance_status(model, version)

    async def set_instances(
        self, model: str, version: str, instances: int, instances_max: int | None = None
    ) -> InstanceStatus:
        """Change the number of instances of a version; see `ModelRepository.set_instances`.

        Needs no models folder, because it reads no files.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
            ConfigError: The numbers are invalid.
            ModelLoadError: An instance failed to load; the previous number stays.
        """
        async with self._changing:
            return await asyncio.to_thread(
                self._repository.set_instances, model, version, instances, instances_max
            )

    def _check_changeable(self) -> None:
        if not self._changeable:
            raise ForbiddenError(
                "models cannot be loaded or unloaded here: the server was started without a models folder"
            )

    # Sequences

    def sequences(self, model: str, version: str = "", *, limit: int) -> SequenceListing:
        """Return the state of a model's sequences, and a list of at most `limit` of them.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
        """
        engine = self._repository.engine(model, version)
        statistics = engine.model_statistics().sequences or SequenceStatistics()
        return SequenceListing(
            engine.name,
            engine.version or "",
            statistics.live,
            statistics.live_max,
            statistics.ends,
            engine.sequences(limit),
        )

    def cancel_sequence(self, model: str, version: str, id: str, namespace: str = "") -> bool:
        """End a sequence with all its waiting requests. Return True if it was live.

        Raises:
            ModelNotFoundError: The model or version is unknown.
            ModelNotReadyError: The model is not loaded.
        """
        return self._repository.engine(model, version).cancel_sequence(id, namespace)

    # Inference

    def infer_now(
        self, model: str, version: str, request: InferRequest, times: RequestTimes | None = None
    ) -> InferResponse | None:
        """Return the response of an inline model, or None if the request has to wait.

        Call `infer` in that case.
        """
        engine = self._repository.engine(model, version)
        try:
            return engine.infer_inline(request, times)
        except StoppedError:
            # `infer` looks for a replacement of the engine.
            return None

    async def infer(
        self, model: str, version: str, request: InferRequest, times: RequestTimes | None = None
    ) -> InferResponse:
        """Return the response to one request. See `Engine.infer` for its errors and for `times`.

        The responses of a model that only streams are joined row by row. A stream without responses
        becomes a response without outputs.
        """
        engine = self._repository.engine(model, version)
        while True:
            metadata = engine.metadata
            try:
                if metadata.can_predict or not metadata.can_stream:
                    return await engine.infer(request, times)
                return await _collect_stream(engine, request)
            except StoppedError as error:
                engine = self._replacement(engine, model, version, error)

    def _replacement(self, engine: Engine, model: str, version: str, error: StoppedError) -> Engine:
        """Return the engine that replaced `engine` after its lookup. Raise `error` without one."""
        replacement = self._repository.engine(model, version)
        if replacement is engine:
            raise error
        return replacement

    async def handle(
        self, model: str, version: str, request: HandleRequest
    ) -> tuple[HandleResponse, ResponseStream[bytes] | None]:
        """Return the response to an opaque request, and the chunks of its body if it is not whole.

        See `Engine.handle`. The caller must `aclose` the chunks.
        """
        engine = self._repository.engine(model, version)
        try:
            return await engine.handle(request)
        except StoppedError as error:
            return await self._replacement(engine, model, version, error).handle(request)

    async def stream_requests(
        self, model: str, version: str, requests: AsyncIterator[InferRequest]
    ) -> AsyncGenerator[list[InferResponse], None]:
        """Yield responses as they arrive, each time all that are ready. No list is empty.

        The caller must `aclose` the generator. A model that does not stream is called once per
        request, for several requests at a time; its responses are in the order of the requests.
        Without any request, the stream ends without a response.
        """
        engine = self._repository.engine(model, version)
        first = await anext(requests, None)
        if first is None:
            return
        if not engine.metadata.can_stream:
            async for response in _infer_in_order(engine, first, requests):
                yield [response]
            return
        select = _output_filter(engine.metadata, first)
        stream = self._open_stream(model, version, first, requests)
        try:
            while responses := await stream.next_batch():
                yield select(responses)
        finally:
            await stream.aclose()

    def _open_stream(
        self, model: str, version: str, first: InferRequest, more: AsyncIterator[InferRequest] | None = None
    ) -> ResponseStream[InferResponse]:
        engine = self._repository.engine(model, version)
        try:
            return engine.stream(first, more)
        except StoppedError as error:
            return self._replacement(engine, model, version, error).stream(first, more)

    async def stream_request(
        self, model: str, version: str, request: InferRequest
    ) -> AsyncGenerator[list[InferResponse], None]:
        """Yield the responses to one request, in the same way as `stream_requests`."""
        engine = self._repository.engine(model, version)
        if not engine.metadata.can_stream:
            yield [await self.infer(model, version, request)]
            return
        select = _output_filter(engine.metadata, request)
        stream = self._open_stream(model, version, request)
        try:
            while responses := await stream.next_batch():
                yield select(responses)
        finally:
            await stream.aclose()


def bf16_outputs(metadata: ModelMetadata) -> Mapping[str, str]:
    """Return the outputs that the model declares as BF16. NumPy has no such dtype."""
    for spec in metadata.outputs:
        if spec.datatype == "BF16":
            return {s.name: s.datatype for s in metadata.outputs if s.datatype == "BF16"}
    return _NONE


def _output_filter(
    metadata: ModelMetadata, request: InferRequest
) -> Callable[[list[InferResponse]], list[InferResponse]]:
    """Return a function that keeps only the requested outputs of responses.

    An item of a stream may have only some of the outputs, or none.
    """
    names = request.outputs
    if not names:
        return lambda responses: responses
    known = [s.name for s in metadata.outputs]
    if known and (unknown := [n for n in names if n not in known]):
        why = f"it has no output {', '.join(map(repr, unknown))} (it has {', '.join(map(repr, known))})"
        raise ModelInputError(metadata.name, why)

    def chosen(responses: list[InferResponse]) -> list[InferResponse]:
        return [replace(r, outputs=tuple(t for t in r.outputs if t.name in names)) for r in responses]

    return chosen


async def _infer_in_order(
    engine: Engine, first: InferRequest, requests: AsyncIterator[InferRequest]
) -> AsyncGenerator[InferResponse, None]:
    """Yield responses in the order of the requests, with several requests in flight."""
    pending: deque[asyncio.Task[InferResponse]] = deque()
    reading = asyncio.ensure_future(_next(requests))
    pending.append(asyncio.ensure_future(engine.infer(first)))
    over = False
    try:
        while pending or not over:
            waits: set[asyncio.Future[Any]] = {pending[0]} if pending else set()
            if not over and len(pending) < CONCURRENT_REQUESTS_MAX:
                waits.add(reading)
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if reading in waits and reading.done():
                request = reading.result()
                over = request is None
                if request is not None:
                    pending.append(asyncio.ensure_future(engine.infer(request)))
                    reading = asyncio.ensure_future(_next(requests))
            while pending and pending[0].done():
                yield pending.popleft().result()
    finally:
        for task in (reading, *pending):
            task.cancel()
        await asyncio.gather(reading, *pending, return_exceptions=True)


async def _next(requests: AsyncIterator[InferRequest]) -> InferRequest | None:
    return await anext(requests, None)


async def _collect_stream(engine: Engine, request: InferRequest) -> InferResponse:
    """Return all items of a stream as one response."""
    select = _output_filter(engine.metadata, request)
    stream = engine.stream(request)
    items: list[InferResponse] = []
    try:
        while responses := await stream.next_batch():
            items += select(responses)
            if len(items) > COLLECTED_RESPONSES_MAX:
                raise DataError(
                    f"model {engine.name} yielded more than {COLLECTED_RESPONSES_MAX} responses: "
                    "request them as a stream"
                )
    finally:
        await stream.aclose()
    if not items:
        return InferResponse((), engine.name, engine.version, request.id)
    if len(items) == 1:
        return items[0]
    names = [t.name for t in items[0].outputs]
    if any([t.name for t in item.outputs] != names for item in items):
        raise ModelContractError(
            engine.name,
            "the items of its stream have different outputs and cannot be joined: request them as a stream",
        )
    try:
        outputs = tuple(
            Tensor(name, np.concatenate([np.atleast_1d(item[name]) for item in items])) for name in names
        )
    except ValueError as error:
        raise ModelContractError(engine.name, f"the items of its stream cannot be joined: {error}") from error
    return InferResponse(
        outputs, items[0].model_name, items[0].model_version, items[0].id, items[0].parameters
    )
